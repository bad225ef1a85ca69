from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from coral.core.serve.net.channel import ChannelBroken, Received
from coral.core.serve.net.messages.data import FedToken, Feed, Rows, RowsPart
from coral.core.serve.net.wire import encode
from coral.core.serve.net.zmq_channel import ZmqChannel

Made = Callable[..., ZmqChannel]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def make(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[Made]:
    made: list[ZmqChannel] = []

    def channel(node: str, *, instance: str = "i", generation: int = 1, window: int = 8) -> ZmqChannel:
        one = ZmqChannel(context, node=node, bind=f"ipc://{tmp_path}/{len(made)}", window=window)
        one.join(instance, generation)
        made.append(one)
        return one

    yield channel
    for one in made:
        one.close()


def take(channel: ZmqChannel, count: int) -> list[Received]:
    found: list[Received] = []
    deadline = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline:
        found += [one for one in channel.receive() if isinstance(one, Received)]
    assert len(found) == count
    return found


def part(request: str = "r", start: int = 0, n: int = 2) -> RowsPart:
    return RowsPart(request=request, attempt=0, start=start, n=n)


def send(channel: ZmqChannel, to: str, payload: bytes, parts: list[RowsPart]) -> None:
    width = len(payload) // 4 // sum(one.n for one in parts)
    channel.send_rows(to, parts, "float32", width, payload)


def test_rows_of_several_senders_keep_their_order_and_bytes(make: Made) -> None:
    receiver = make("to")
    senders = [make("a"), make("b")]
    payloads = {sender: [os.urandom(24 * (i + 1)) for i in range(5)] for sender in ("a", "b")}
    for sender, name in zip(senders, payloads, strict=True):
        sender.connect({"to": receiver.address})
        for i, payload in enumerate(payloads[name]):
            send(sender, "to", payload, [part("x", 0, i + 1), part("y", 0, i + 1)])
    for sent in payloads.values():
        sent.reverse()
    for received in take(receiver, 10):
        assert isinstance(received.header, Rows)
        assert received.rows is not None
        assert bytes(received.rows.data) == payloads[received.header.sender].pop()
        assert received.rows.shape == received.header.shape
    assert payloads == {"a": [], "b": []}


def test_a_sender_that_has_taken_its_credit_sleeps(make: Made) -> None:
    receiver, sender = make("to"), make("a")
    sender.connect({"to": receiver.address})
    poller = zmq.Poller()
    for socket in sender.sockets:
        poller.register(socket, zmq.POLLIN)
    send(sender, "to", bytes(16), [part()])
    (received,) = take(receiver, 1)
    assert isinstance(received.header, Rows)
    receiver.done(received.header)
    assert poller.poll(5_000), "credit wakes it"
    assert sender.receive() == []
    assert poller.poll(50) == []


def test_fed_tokens_come_between_rows_in_order(make: Made) -> None:
    receiver, sender = make("to"), make("a")
    sender.connect({"to": receiver.address})
    send(sender, "to", bytes(16), [part()])
    fed = FedToken(request="r", attempt=3, position=0, token=42)
    sender.feed("to", [fed])
    send(sender, "to", bytes(16), [part(start=2)])
    rows, feed, more = take(receiver, 3)
    assert [type(one.header) for one in (rows, feed, more)] == [Rows, Feed, Rows]
    assert isinstance(feed.header, Feed)
    assert feed.header.tokens == (fed,)


def test_a_slow_receiver_bounds_its_sender(make: Made) -> None:
    receiver, sender = make("to"), make("a", window=3)
    sender.connect({"to": receiver.address})
    sent = 0
    while sender.may_send():
        send(sender, "to", bytes(16), [part()])
        sent += 1
    assert sent == 3
    with pytest.raises(ChannelBroken, match="no credit"):
        send(sender, "to", bytes(16), [part()])
    sender.feed("to", [])
    received = take(receiver, 4)
    assert not sender.may_send()
    header = received[1].header
    assert isinstance(header, Rows)
    receiver.done(header)
    deadline = time.monotonic() + 5
    while not sender.may_send() and time.monotonic() < deadline:
        assert sender.receive() == []
    send(sender, "to", bytes(16), [part()])
    assert not sender.may_send()


def test_another_generation_and_noise_are_dropped_and_counted(
    make: Made, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    receiver, sender = make("to"), make("a")
    old = make("old", generation=0)
    for one in (sender, old):
        one.connect({"to": receiver.address})
    send(old, "to", bytes(16), [part()])
    with context.socket(zmq.DEALER) as noise:
        noise.identity = b"noise"
        noise.connect(receiver.address)
        forged = Feed(instance="i", generation=1, sender="a", sequence=1, tokens=())
        for frames in (
            [b""],
            [os.urandom(50)],
            [b"\x01\x80", b"x"],
            [b"a", b"b", b"c", b"d"],
            [encode(forged)],
        ):
            noise.send_multipart(frames)
        deadline = time.monotonic() + 5
        while receiver.malformed < 7 and time.monotonic() < deadline:
            assert receiver.receive() == []
    assert receiver.malformed == 7  # the six, and that somebody of another generation is about to send
    send(sender, "to", bytes(16), [part()])
    take(receiver, 1)


def raw(context: zmq.Context[zmq.Socket[bytes]], to: ZmqChannel, *messages: list[bytes]) -> None:
    with context.socket(zmq.DEALER) as socket:
        socket.identity = b"a"
        socket.connect(to.address)
        for frames in messages:
            socket.send_multipart(frames)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            to.receive()


def header(sequence: int, shape: tuple[int, int] = (2, 2), n: int = 2, dtype: str = "float32") -> bytes:
    return encode(
        Rows(
            instance="i",
            generation=1,
            sender="a",
            sequence=sequence,
            dtype=dtype,
            shape=shape,
            parts=(part(n=n),),
        )
    )


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([[header(2), bytes(16)]], "message 2 of a after 0"),
        ([[header(1), bytes(16)], [header(1), bytes(16)]], "message 1 of a after 1"),
        ([[header(1), bytes(12)]], "12 bytes are not 2×2 of float32"),
        ([[header(1, n=1), bytes(16)]], "parts of 1 rows, not 2"),
        ([[header(1, dtype="object"), bytes(16)]], "unknown dtype 'object'"),
    ],
)
def test_what_is_lost_doubled_or_does_not_fit_breaks_the_channel(
    make: Made, context: zmq.Context[zmq.Socket[bytes]], messages: list[list[bytes]], reason: str
) -> None:
    with pytest.raises(ChannelBroken, match=reason):
        raw(context, make("to"), *messages)


def test_what_comes_of_a_node_that_does_not_send_here_is_dropped(make: Made) -> None:
    receiver, sender, stranger = make("to"), make("a"), make("b")
    receiver.connect({}, senders=("a",))
    fed = [FedToken(request="r", attempt=0, position=0, token=1)]
    for one in (stranger, sender):
        one.connect({"to": receiver.address})
        for _ in range(2):
            one.feed("to", fed)
    assert [received.header.sender for received in take(receiver, 2)] == ["a", "a"]
    deadline = time.monotonic() + 5
    while receiver.malformed < 3 and time.monotonic() < deadline:
        assert not receiver.receive()
    assert receiver.malformed == 3  # that it is about to send, and what it sent
