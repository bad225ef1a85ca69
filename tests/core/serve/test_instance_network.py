"""An instance whose processes could be on several machines: every socket is TCP, with keys."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import psutil
import pytest
import zmq

from coral.core.serve.net import wire
from coral.core.serve.net.curve import CurveClient
from coral.core.serve.net.keys import KeyPair
from coral.core.serve.net.transport import Dealer
from coral.testing.instance import InstanceUnderTest, stages
from coral.types.request import GenerateRequest, Sampling, Token


def made(*, network: bool) -> InstanceUnderTest:
    placement = stages(
        cuts=(3, 20, 30),
        nodes=(1, 2, 1),
        engine="mock",
        options={"kv_blocks": 256, "cost": {"overhead_s": 0.002}},
        weights={"s1n0": 2.0, "s1n1": 1.0},
    )
    return InstanceUnderTest(placement, network=network)


def requests(count: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            id=f"r{number}",
            model="model",
            prompt_ids=tuple(range(number, number + 5 + number * 20)),
            sampling=Sampling(temperature=0.0, max_tokens=24),
        )
        for number in range(count)
    ]


def tokens(instance: InstanceUnderTest, count: int) -> dict[str, list[int]]:
    return {name: answer.tokens for name, answer in instance.generate(requests(count)).items()}


@pytest.fixture(scope="module")
def instance() -> Iterator[InstanceUnderTest]:
    with made(network=True) as one:
        one.wait_ready()
        yield one


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    with made(network=False) as one:
        one.wait_ready()
        return tokens(one, 12)


def listening(instance: InstanceUnderTest) -> list[tuple[str, int]]:
    return [
        (one.laddr.ip, one.laddr.port)
        for process in instance.processes
        for one in psutil.Process(process.pid).net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]


def test_the_same_tokens_as_on_one_machine(
    instance: InstanceUnderTest, expected: dict[str, list[int]]
) -> None:
    assert tokens(instance, 12) == expected
    instance.settled(10)


def test_its_sockets_are_on_loopback_and_no_key_is_on_a_command_line(instance: InstanceUnderTest) -> None:
    places = listening(instance)
    assert len(places) == len(instance.processes)
    assert {ip for ip, _ in places} == {"127.0.0.1"}
    assert instance.listening.keys is not None
    secret = instance.listening.keys.plane.secret
    for process in instance.processes:
        assert secret not in " ".join(psutil.Process(process.pid).cmdline())
    assert secret not in instance.said()


def say_all(instance: InstanceUnderTest, address: str, identity: str, keys: CurveClient) -> int:
    """Say everything that a stranger can think of; messages that came back."""
    messages: list[wire.Message] = [
        wire.WorkerHello(node=identity, pid=1, data_address="tcp://127.0.0.1:1"),
        wire.WorkerHello(node="s0n0", pid=1, data_address="tcp://127.0.0.1:1"),
        wire.WorkerFailed(node="s0n0", reason="says a stranger"),
        wire.SequenceOpened(node="s0n0", request="r0", attempt=0),
        wire.SequencesReleased(node="s0n0", sequences=(("r0", 0),)),
        wire.Tokens(
            instance=instance.spec.instance,
            node="s0n0",
            tokens=(Token(request="r0", attempt=0, position=0, token=1),),
        ),
        wire.Feed(instance=instance.spec.instance, generation=1, sender="s0n0", sequence=9, tokens=()),
        wire.Shutdown(reason="says a stranger"),
        wire.Heartbeat(at_s=0.0),
    ]
    with zmq.Context() as context:
        dealer = Dealer(context, address, identity=identity, keys=keys)
        try:
            for _ in range(50):
                for message in messages:
                    dealer.send(message)
            return dealer.socket.poll(700)
        finally:
            dealer.close(linger_ms=1000)


def test_strangers_get_nothing_and_change_nothing(
    instance: InstanceUnderTest, expected: dict[str, list[int]]
) -> None:
    """Without a key, with one that is not known, and with a known one under a name that is not."""
    keys = instance.listening.keys
    assert keys is not None
    held = {one.pid: psutil.Process(one.pid).memory_info().rss for one in instance.processes}
    for ip, port in listening(instance):
        address = f"tcp://{ip}:{port}"
        with socket.create_connection((ip, port), timeout=5) as raw, contextlib.suppress(OSError):
            raw.sendall(os.urandom(3000))
        with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
            plain.identity, plain.linger = b"s0n0", 0
            plain.connect(address)
            plain.send(wire.encode(wire.Shutdown()))
            assert plain.poll(300) == 0
        unknown = CurveClient(KeyPair.new(), keys.plane.public)
        assert say_all(instance, address, "s0n0", unknown) == 0, "not even with a name that is known"
        say_all(instance, address, "stranger", CurveClient(keys.plane, keys.plane.public))
    assert tokens(instance, 12) == expected
    instance.settled(10)
    for pid, before in held.items():
        assert psutil.Process(pid).memory_info().rss - before < 30 << 20
