"""Payloads that go beside their headers: the protocol under NCCL's rules, and over gloo itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from coral.core.serve.net.channel import ChannelBroken, Received, ReceivedKv
from coral.core.serve.net.communicator import Maker
from coral.core.serve.net.messages.data import FedToken, Feed, Rows, RowsPart
from coral.core.serve.net.messages.handover import Kv, KvPart
from coral.core.serve.net.paths import Paths
from coral.core.serve.net.torch_groups import maker as torch_maker
from coral.core.serve.net.zmq_channel import ZmqChannel
from coral.testing.communicators import StrictMaker, StrictPair

Made = Callable[..., ZmqChannel]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def violations() -> list[str]:
    return []


@pytest.fixture(params=["strict", "gloo"])
def make(
    request: pytest.FixtureRequest,
    context: zmq.Context[zmq.Socket[bytes]],
    violations: list[str],
    tmp_path: Path,
) -> Iterator[Made]:
    made: list[ZmqChannel] = []
    network: dict[str, StrictPair] = {}

    def channel(node: str, *, instance: str = "i", window: int = 8, patience_s: float = 10.0) -> ZmqChannel:
        means: Maker
        if request.param == "strict":
            means = StrictMaker(network, violations, host=node, patience_s=patience_s)
        else:
            pytest.importorskip("torch")
            means = torch_maker("gloo", "127.0.0.1")
        one = ZmqChannel(
            context,
            node=node,
            bind=f"ipc://{tmp_path}/{len(made)}",
            window=window,
            kv_window=4,
            paths=Paths(means),
        )
        one.join(instance, 1)
        made.append(one)
        return one

    yield channel
    for one in made:
        one.close()
    assert violations == []


strict = pytest.mark.parametrize("make", ["strict"], indirect=True)


def until(condition: Callable[[], bool], *channels: ZmqChannel) -> list[Received | ReceivedKv]:
    """Run the channels' loops until it holds; what has arrived meanwhile."""
    found: list[Received | ReceivedKv] = []
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it does not come to hold"
        for one in channels:
            found += one.receive()
        time.sleep(0.001)
    return found


def gather(receiver: ZmqChannel, count: int, *others: ZmqChannel) -> list[Received | ReceivedKv]:
    found: list[Received | ReceivedKv] = []

    def enough() -> bool:
        found.extend(receiver.receive())
        return len(found) >= count

    until(enough, *others)
    assert len(found) == count
    return found


def connect(sender: ZmqChannel, to: str, receiver: ZmqChannel) -> None:
    sender.connect({to: receiver.address})
    until(lambda: not sender.unreached, receiver, sender)


def rows(n: int, width: int, fill: int) -> bytes:
    return bytes([fill % 251]) * (n * width * 4)


def part(n: int, start: int = 0) -> RowsPart:
    return RowsPart(request="r", attempt=0, start=start, n=n)


def kv(start: int, end: int, known: int, request: str = "r") -> tuple[Kv, list[bytes]]:
    """A message of two layers, and its frames."""
    parts = tuple(
        KvPart(layer=layer, kind="full", dtype="float32", shape=(end - start, 2, 4), token_start=start)
        for layer in (0, 1)
    )
    header = Kv(
        instance="i",
        generation=1,
        sender="",
        sequence=0,
        request=request,
        attempt=3,
        start=start,
        end=end,
        known=known,
        parts=parts,
    )
    return header, [bytes([start + i]) * ((end - start) * 32) for i in range(4)]


def test_payloads_meet_their_headers(make: Made) -> None:
    receiver, sender = make("to"), make("a")
    connect(sender, "to", receiver)
    for i in range(5):
        sender.send_rows("to", [part(i + 1)], "float32", 3, rows(i + 1, 3, i))
    for i, got in enumerate(gather(receiver, 5, sender)):
        assert isinstance(got, Received)
        assert isinstance(got.header, Rows)
        assert got.rows is not None
        assert bytes(got.rows.data) == rows(i + 1, 3, i)
        receiver.done(got.header)
    until(lambda: sender.may_send(), sender)


def test_fed_tokens_need_no_path(make: Made) -> None:
    receiver, sender = make("to"), make("a")
    connect(sender, "to", receiver)
    sender.feed("to", [FedToken(request="r", attempt=0, position=0, token=7)])
    (got,) = gather(receiver, 1)
    assert isinstance(got, Received)
    assert isinstance(got.header, Feed)


def test_kv_of_another_instance(make: Made) -> None:
    receiver, sender = make("to"), make("a", instance="other")
    sender.link({"to": receiver.address})
    until(lambda: sender.may_send_to("to"), receiver)
    sent = [kv(0, 4, 9), kv(4, 9, 9)]
    for header, frames in sent:
        sender.send_kv("to", header, frames)
    for got, (header, frames) in zip(gather(receiver, 2, sender), sent, strict=True):
        assert isinstance(got, ReceivedKv)
        assert (got.header.start, got.header.end) == (header.start, header.end)
        assert [bytes(frame) for frame in got.frames] == frames
        receiver.done(got.header)
    until(lambda: sender.kv_credited("to") == 2, sender)


def test_a_window_that_holds_nothing_of_a_layer_sends_nothing_of_it(make: Made) -> None:
    receiver, sender = make("to"), make("a", instance="other")
    sender.link({"to": receiver.address})
    until(lambda: sender.may_send_to("to"), receiver)
    empty = KvPart(layer=0, kind="window", dtype="float32", shape=(0, 2, 4), token_start=4)
    header, frames = kv(0, 4, 4)
    header = Kv(
        instance="i",
        generation=1,
        sender="",
        sequence=0,
        request="r",
        attempt=3,
        start=0,
        end=4,
        known=4,
        parts=(empty, header.parts[1]),
    )
    sender.send_kv("to", header, [b"", b"", *frames[2:]])
    (got,) = gather(receiver, 1, sender)
    assert isinstance(got, ReceivedKv)
    assert [bytes(frame) for frame in got.frames] == [b"", b"", *frames[2:]]


@strict
@pytest.mark.parametrize("seed", range(8))
def test_any_interleaving_of_senders_keeps_every_order_and_byte(make: Made, seed: int) -> None:
    """Several senders of the instance and of others, of rows, tokens and KV, to a receiver that is slow to
    use what it got: nothing waits for ever, nothing meets the wrong bytes."""
    draw = random.Random(seed)
    receiver = make("to", window=3)
    inside = {name: make(name, window=3) for name in ("a", "b")}
    outside = {name: make(name, instance="other") for name in ("x", "y")}
    for one in inside.values():
        one.connect({"to": receiver.address})
    for one in outside.values():
        one.link({"to": receiver.address})
    everyone = (*inside.values(), *outside.values())
    until(
        lambda: (
            all(not o.unreached for o in inside.values())
            and all(o.may_send_to("to") for o in outside.values())
        ),
        receiver,
        *everyone,
    )
    sent: dict[str, list[bytes]] = {name: [] for name in (*inside, *outside)}
    got: dict[str, list[bytes]] = {name: [] for name in sent}
    unused: list[Rows | Kv] = []

    def receive() -> None:
        for one in receiver.receive():
            if isinstance(one, ReceivedKv):
                got[one.header.sender.partition("#")[0]].append(b"".join(map(bytes, one.frames)))
                unused.append(one.header)
            elif isinstance(one.header, Rows):
                assert one.rows is not None
                got[one.header.sender].append(bytes(one.rows.data))
                unused.append(one.header)
            else:
                got[one.header.sender].append(b"feed")

    for _ in range(300):
        name = draw.choice([*sent])
        if name in inside and draw.random() < 0.3:
            inside[name].feed("to", [FedToken(request="r", attempt=0, position=0, token=1)])
        elif name in inside and inside[name].may_send():
            data = draw.randbytes(4 * 2 * draw.randint(1, 9))
            inside[name].send_rows("to", [part(len(data) // 8)], "float32", 2, data)
            sent[name].append(data)
        elif name in outside and outside[name].may_send_to("to"):
            header, frames = kv(draw.randint(0, 9), draw.randint(10, 20), 30)
            outside[name].send_kv("to", header, frames)
            sent[name].append(b"".join(frames))
        if draw.random() < 0.5:
            receive()
        while unused and draw.random() < 0.5:
            receiver.done(unused.pop(0))
        for one in everyone:
            one.receive()

    def complete() -> bool:
        receive()
        return all([x for x in got[name] if x != b"feed"] == sent[name] for name in sent)

    until(complete, *everyone)


@strict
def test_an_end_that_never_comes_is_named(make: Made) -> None:
    receiver, sender = make("to"), make("a", patience_s=0.2)
    sender.connect({"to": receiver.address})
    with pytest.raises(ChannelBroken, match="a cannot send to to"):
        until(lambda: not sender.unreached)


@strict
def test_rows_whose_sender_has_gone_break_the_channel(make: Made) -> None:
    receiver, sender = make("to"), make("a")
    connect(sender, "to", receiver)
    sender.send_rows("to", [part(1)], "float32", 2, rows(1, 2, 1))
    sender.close()
    with pytest.raises(ChannelBroken, match="gets nothing more from a"):
        until(lambda: False, receiver)


@strict
def test_a_link_that_breaks_is_nobody_elses_concern(make: Made) -> None:
    receiver, sender, friend = make("to"), make("a", instance="other"), make("f")
    connect(friend, "to", receiver)
    sender.link({"to": receiver.address})
    until(lambda: sender.may_send_to("to"), receiver)
    sender.unlink("to")
    sender.link({"to": receiver.address})
    until(lambda: sender.may_send_to("to"), receiver)
    header, frames = kv(0, 4, 4)
    sender.send_kv("to", header, frames)
    friend.send_rows("to", [part(1)], "float32", 2, rows(1, 2, 1))
    assert len(gather(receiver, 2, sender, friend)) == 2


def test_threads_end_with_their_channel(make: Made) -> None:
    before = threading.active_count()
    receiver, sender = make("to"), make("a")
    connect(sender, "to", receiver)
    assert threading.active_count() > before
    sender.close()
    receiver.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@strict
def test_who_has_no_path_sends_payloads_with_their_headers(
    make: Made, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """Rows and KV between one that has paths and one that has none, both ways."""
    with_paths = make("to")
    without = ZmqChannel(context, node="a", bind=f"ipc://{tmp_path}/without")
    without.join("i", 1)
    try:
        with_paths.connect({"a": without.address})
        without.connect({"to": with_paths.address})
        until(lambda: not (with_paths.unreached or without.unreached), with_paths, without)
        for sender, to, receiver in ((without, "to", with_paths), (with_paths, "a", without)):
            sender.send_rows(to, [part(2)], "float32", 3, rows(2, 3, 7))
            (got,) = gather(receiver, 1, sender)
            assert isinstance(got, Received)
            assert got.rows is not None
            assert bytes(got.rows.data) == rows(2, 3, 7)
            sender.link({to: receiver.address})
            header, frames = kv(0, 4, 4)
            sender.send_kv(to, header, frames)
            (taken,) = gather(receiver, 1, sender)
            assert isinstance(taken, ReceivedKv)
            assert [bytes(frame) for frame in taken.frames] == frames
    finally:
        without.close()


@strict
def test_a_link_whose_other_end_never_comes_says_so_and_can_be_made_anew(make: Made) -> None:
    receiver, sender = make("to"), make("a", instance="other", patience_s=0.2)
    sender.link({"to": receiver.address})
    until(lambda: bool(sender.link_fault("to")))
    assert not sender.may_send_to("to")
    sender.unlink("to")
    sender.link({"to": receiver.address})
    assert sender.link_fault("to") == ""
    until(lambda: sender.may_send_to("to"), receiver)


@strict
def test_paths_of_links_whose_sender_has_gone_are_given_up(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word: nothing was under way that could have broken."""
    monkeypatch.setattr("coral.core.serve.net.zmq_channel.PROBE_S", 0.1)
    receiver, gone, stays = make("to"), make("a", instance="other"), make("b", instance="other")
    for sender in (gone, stays):
        sender.link({"to": receiver.address})
    until(lambda: gone.may_send_to("to") and stays.may_send_to("to"), receiver)
    before = threading.active_count()
    gone.close()
    until(lambda: threading.active_count() == before - 2, receiver)
    header, frames = kv(0, 4, 4)
    stays.send_kv("to", header, frames)
    (got,) = gather(receiver, 1, stays)
    assert isinstance(got, ReceivedKv)
    receiver.done(got.header)
    time.sleep(0.3)
    until(lambda: stays.kv_credited("to") == 1, receiver, stays)
    assert stays.malformed == 0, "what it was last told is told again"


@strict
def test_more_paths_than_are_kept_cost_the_least_recently_used(
    make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coral.core.serve.net.arrivals.MOST", 2)
    receiver = make("to")
    first, second, third = (make(name, instance="other") for name in ("a", "b", "c"))
    for sender in (first, second):
        sender.link({"to": receiver.address})
        until(lambda sender=sender: sender.may_send_to("to"), receiver)  # type: ignore[misc]
    header, frames = kv(0, 4, 4)
    first.send_kv("to", header, frames)
    gather(receiver, 1, first)
    third.link({"to": receiver.address})
    until(lambda: third.may_send_to("to"), receiver)
    for sender in (first, third):
        sender.send_kv("to", header, frames)
        gather(receiver, 1, sender)
    second.send_kv("to", header, frames)
    until(lambda: receiver.malformed == 1 or bool(second.link_fault("to")), receiver, second)


@strict
def test_a_path_that_fails_in_a_way_of_its_own_breaks_the_channel(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> bytes:
        raise MemoryError("no room")

    receiver, sender = make("to"), make("a")
    connect(sender, "to", receiver)
    monkeypatch.setattr("coral.testing.communicators.StrictEnd.recv", fails)
    sender.send_rows("to", [part(1)], "float32", 2, rows(1, 2, 1))
    with pytest.raises(ChannelBroken, match="gets nothing more from a: MemoryError"):
        until(lambda: False, receiver)


@strict
def test_a_path_is_opened_by_nobody_but_who_sends_here(make: Made) -> None:
    receiver, sender, stranger, old = make("to"), make("a"), make("b"), make("a2", instance="another")
    receiver.connect({}, senders=("a",))
    for one in (sender, stranger, old):
        one.connect({"to": receiver.address})
    until(lambda: not sender.unreached and receiver.malformed == 2, receiver, sender)
    assert stranger.unreached == ["to"]
    assert old.unreached == ["to"]
