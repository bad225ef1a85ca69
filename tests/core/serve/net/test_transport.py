from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from coral.core.serve.net import transport
from coral.core.serve.net.transport import Congested, Dealer, Endpoint, Pull, Push, Router, Unreachable
from coral.core.serve.net.wire import PROTOCOL, AskStats, Drained, Heartbeat, decode, encode
from coral.errors import ProtocolError

E = TypeVar("E", bound=Endpoint)
M = TypeVar("M")
Context = zmq.Context[zmq.Socket[bytes]]


class Sockets:
    """Makes endpoints and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: Context = zmq.Context()
        self._made: list[Endpoint] = []

    def router(self) -> Router:
        return self._keep(Router(self.context, self._address()))

    def dealer(self, address: str) -> Dealer:
        return self._keep(Dealer(self.context, address, identity="node"))

    def push(self, address: str, high_water: int = 1000) -> Push:
        return self._keep(Push(self.context, address, high_water=high_water))

    def pull(self, address: str = "") -> Pull:
        return self._keep(Pull(self.context, address or self._address()))

    def _address(self) -> str:
        return f"ipc://{self.folder}/{len(self._made)}"

    def _keep(self, endpoint: E) -> E:
        self._made.append(endpoint)
        return endpoint

    def close(self) -> None:
        for endpoint in self._made:
            endpoint.close(linger_ms=0)
        self.context.term()


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    sockets = Sockets(tmp_path)
    yield sockets
    sockets.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 5 s"
        time.sleep(0.005)


def first(drain: Callable[[], list[M]]) -> M:
    """The first message that comes."""
    deadline = time.monotonic() + 5
    while not (found := drain()):
        assert time.monotonic() < deadline, "nothing came within 5 s"
        time.sleep(0.005)
    return found[0]


def fill(push: Push, taken: list[float]) -> None:
    """Send until no more is taken; `taken` lists what was."""
    for number in range(100_000):
        push.send(Heartbeat(at_s=float(number)))
        taken.append(float(number))


def test_dealer_and_router_exchange_messages_by_name(sockets: Sockets) -> None:
    router = sockets.router()
    dealer = sockets.dealer(router.address)
    dealer.send(AskStats())
    assert first(router.drain) == ("node", AskStats())
    router.send("node", Drained(instance="i"))
    assert first(dealer.drain) == Drained(instance="i")
    with pytest.raises(Unreachable, match="'nobody'"):
        router.send("nobody", AskStats())


def test_a_peer_that_dials_again_takes_its_place_over(sockets: Sockets) -> None:
    router = sockets.router()
    before = sockets.dealer(router.address)
    before.send(AskStats())
    first(router.drain)
    after = sockets.dealer(router.address)
    after.send(AskStats())
    first(router.drain)
    router.send("node", AskStats())
    first(after.drain)
    assert before.drain() == []


def test_malformed_frames_are_counted_and_dropped(sockets: Sockets) -> None:
    pull = sockets.pull()
    push = sockets.push(pull.address)
    push.send_encoded(b"\x01nonsense")
    push.socket.send_multipart([encode(AskStats()), b"more"])
    push.send(AskStats())
    assert first(pull.drain) == AskStats()
    assert pull.malformed == 2


def test_what_a_full_socket_does_not_take_waits_in_order_up_to_a_bound(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BACKLOG", 50)
    push = sockets.push("inproc://nobody-yet", high_water=5)
    taken: list[float] = []
    with pytest.raises(Congested, match="50 messages wait"):
        fill(push, taken)
    sent = len(taken)
    assert sent >= 50
    assert push.blocked
    pull = sockets.pull("inproc://nobody-yet")
    found: list[float] = []

    def all_came() -> bool:
        push.flush()
        found.extend(m.at_s for m in pull.drain() if isinstance(m, Heartbeat))
        return len(found) == sent

    until(all_came)
    assert found == taken
    assert not push.blocked


@given(st.binary(max_size=200), st.booleans())
def test_no_frame_makes_the_decoder_fail_otherwise_than_it_says(frame: bytes, ours: bool) -> None:
    try:
        message = decode(bytes([PROTOCOL]) + frame if ours else frame)
    except ProtocolError:
        return
    assert decode(encode(message)) == message
