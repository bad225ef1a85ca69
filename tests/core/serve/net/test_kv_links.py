"""KV between nodes of two instances, over the zmq channel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from coral.core.serve.net.channel import ReceivedKv
from coral.core.serve.net.messages.handover import Kv, KvPart
from coral.core.serve.net.zmq_channel import ZmqChannel
from coral.testing.waiting import wait_until

Made = Callable[..., ZmqChannel]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def make(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[Made]:
    made: list[ZmqChannel] = []

    def channel(node: str, instance: str, *, bind: str = "") -> ZmqChannel:
        one = ZmqChannel(context, node=node, bind=bind or f"ipc://{tmp_path}/{len(made)}", kv_window=3)
        one.join(instance, 1)
        made.append(one)
        return one

    yield channel
    for one in made:
        one.close()


def take(channel: ZmqChannel, count: int) -> list[ReceivedKv]:
    found: list[ReceivedKv] = []
    deadline = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline:
        found += [one for one in channel.receive() if isinstance(one, ReceivedKv)]
    assert len(found) == count
    return found


def nothing_comes(channel: ZmqChannel) -> bool:
    time.sleep(0.1)
    return channel.receive() == []


def kv(start: int = 0, n: int = 4, layers: tuple[int, ...] = (2, 3), known: int = 100) -> Kv:
    parts = tuple(
        KvPart(layer=layer, kind="full", dtype="float32", shape=(n, 2, 8), token_start=start)
        for layer in layers
    )
    return Kv(
        instance="decode",
        generation=1,
        request="r",
        attempt=5,
        start=start,
        end=start + n,
        known=known,
        parts=parts,
    )


def payload(header: Kv) -> list[bytes]:
    return [os.urandom(part.shape[0] * 2 * 8 * 4) for part in header.parts for _ in range(2)]


def test_kv_of_several_senders_arrives_whole_and_in_order(make: Made) -> None:
    receiver = make("decode/s0n0", "decode")
    sent: dict[str, list[list[bytes]]] = {}
    for name in ("prefill/s0n0", "prefill/s1n0"):
        sender = make(name, "prefill")
        sender.link({"decode/s0n0": receiver.address})
        for start in (0, 4, 8):
            header = kv(start)
            frames = payload(header)
            assert sender.send_kv("decode/s0n0", header, frames) == start // 4 + 1
            sent.setdefault(name, []).append(frames)
        assert not sender.may_send_to("decode/s0n0")
        with pytest.raises(ValueError, match="no credit"):
            sender.send_kv("decode/s0n0", kv(12), payload(kv(12)))
    for received in take(receiver, 6):
        node, _, number = received.header.sender.partition("#")
        assert number
        assert [bytes(frame) for frame in received.frames] == sent[node].pop(0)
        assert received.header.parts == kv(received.header.start).parts


def test_credit_comes_back_and_wakes_a_poller(make: Made) -> None:
    receiver, sender = make("d", "decode"), make("p", "prefill")
    sender.link({"d": receiver.address})
    for start in (0, 4, 8):
        sender.send_kv("d", kv(start), payload(kv(start)))
    first, second, _ = take(receiver, 3)
    poller = zmq.Poller()
    for socket in sender.sockets:
        poller.register(socket, zmq.POLLIN)
    receiver.done(first.header)
    receiver.done(second.header)
    assert poller.poll(5_000)
    wait_until(lambda: sender.receive() == [] and sender.kv_credited("d") == 2, 5, "credit")
    assert sender.may_send_to("d")
    assert sender.may_send(), "rows within the instance have credit of their own"


def test_nothing_waits_for_a_node_that_is_not_there(make: Made) -> None:
    gone, sender = make("d", "decode"), make("p", "prefill")
    address = gone.address
    gone.close()
    sender.link({"d": address})
    began = time.monotonic()
    while sender.may_send_to("d"):
        sender.send_kv("d", kv(), payload(kv()))
    sender.unlink("d")
    sender.unlink("d")
    assert not sender.may_send_to("d")
    assert time.monotonic() - began < 1
    with pytest.raises(KeyError):
        sender.send_kv("d", kv(), payload(kv()))


def test_a_link_that_was_cut_is_made_anew_at_once(make: Made) -> None:
    """Its old connection may still be known to the receiver."""
    receiver, sender = make("d", "decode"), make("p", "prefill")
    for round_ in range(5):
        sender.link({"d": receiver.address})
        sender.send_kv("d", kv(4 * round_), payload(kv()))
        (received,) = take(receiver, 1)
        assert received.header.start == 4 * round_
        receiver.done(received.header)
        wait_until(lambda: sender.receive() == [] and sender.kv_credited("d") == 1, 5, "credit")
        sender.unlink("d")


def test_a_node_that_has_moved_is_linked_at_its_new_address(make: Made) -> None:
    old, new, sender = make("d", "decode"), make("d", "decode"), make("p", "prefill")
    sender.link({"d": old.address})
    sender.send_kv("d", kv(), payload(kv()))
    take(old, 1)
    sender.link({"d": old.address})
    sender.send_kv("d", kv(4), payload(kv()))
    take(old, 1)
    sender.link({"d": new.address})
    assert sender.send_kv("d", kv(), payload(kv())) == 1
    take(new, 1)


def dropped(receiver: ZmqChannel, count: int) -> int:
    """Messages that it has dropped, once they are as many."""
    wait_until(lambda: receiver.receive() == [] and receiver.malformed >= count, 5, "noticed")
    return receiver.malformed


def test_what_is_not_for_this_instance_or_does_not_fit_is_dropped(make: Made) -> None:
    receiver, sender = make("d", "decode"), make("p", "prefill")
    good = kv()
    part = good.parts[0]
    wrong = [
        msgspec.structs.replace(good, instance="another"),
        msgspec.structs.replace(good, generation=2),
        msgspec.structs.replace(good, parts=good.parts[:1]),
        msgspec.structs.replace(good, parts=()),
        msgspec.structs.replace(good, end=3),
        msgspec.structs.replace(good, start=-1),
        msgspec.structs.replace(good, known=3),
        msgspec.structs.replace(good, start=4),
    ]
    for field in ({"dtype": "int9"}, {"shape": (4, 2, 9)}, {"shape": (-4, -2, 8)}, {"layer": -1}):
        changed = msgspec.structs.replace(part, **field)
        wrong.append(msgspec.structs.replace(good, parts=(changed, *good.parts[1:])))
    for number, header in enumerate(wrong, 1):
        sender.link({"d": receiver.address})
        sender.send_kv("d", header, payload(good))
        assert dropped(receiver, number) == number, header
        sender.unlink("d")
    sender.link({"d": receiver.address})
    sender.send_kv("d", good, payload(good))
    take(receiver, 1)
