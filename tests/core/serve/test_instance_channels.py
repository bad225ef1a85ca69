"""Instances over every channel that runs here: the same tokens, what a death costs, who is missing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from coral.core.serve import worker as worker_process
from coral.core.serve.net import wire
from coral.core.serve.net.transport import Router
from coral.testing.instance import Answer, InstanceUnderTest, stages
from coral.testing.pair import Pair
from coral.types.request import GenerateRequest, Sampling

pytest.importorskip("torch", reason="gloo comes with torch")

NOTICED_S = 10.0
CHANNELS = pytest.mark.parametrize("channel", ["zmq", "gloo"])
OPTIONS = {"kv_blocks": 256, "cost": {"overhead_s": 0.002}}


def made(
    channel: str, cuts: tuple[int, ...], nodes: tuple[int, ...], name: str = "a", generation: int = 1
) -> InstanceUnderTest:
    placement = stages(
        cuts=cuts,
        nodes=nodes,
        engine="mock",
        options=OPTIONS,
        instance=name,
        prefix=f"{name}/",
        generation=generation,
    )
    return InstanceUnderTest(placement, channel=channel)


def requests(count: int, output: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            id=f"r{number}",
            model="model",
            prompt_ids=tuple(range(number, number + 5 + number * 20)),
            sampling=Sampling(temperature=0.0, max_tokens=output),
        )
        for number in range(count)
    ]


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.tokens for name, answer in answers.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """What one stage says, over no channel at all."""
    placement = stages(cuts=(30,), nodes=(1,), engine="mock", options=OPTIONS)
    with InstanceUnderTest(placement) as instance:
        instance.wait_ready()
        return tokens(instance.generate(requests(12, 24)))


@CHANNELS
def test_the_same_tokens_over_every_channel(channel: str, expected: dict[str, list[int]]) -> None:
    with made(channel, (3, 20, 30), (1, 2, 1)) as instance:
        instance.wait_ready()
        answers = instance.generate(requests(12, 24), late=4)
        assert all(answer.finish == "length" for answer in answers.values())
        assert tokens(answers) == expected
        instance.settled()


def test_kv_goes_between_instances_over_gloo(expected: dict[str, list[int]]) -> None:
    with made("gloo", (30,), (1,), "p") as prefill, made("gloo", (20, 30), (1, 1), "d") as decode:
        for instance in (prefill, decode):
            instance.wait_ready()
        pair = Pair(prefill, decode)
        assert tokens(pair.generate(requests(12, 24))) == expected
        pair.settled()
        assert pair.handed == set(expected)
        assert "path p/s0n0#1" in decode.said(), "it has come by gloo"


@CHANNELS
def test_one_dead_stage_of_three_costs_its_instance_alone(
    channel: str, expected: dict[str, list[int]]
) -> None:
    """kill -9: noticed in time; the survivors, who wait for its bytes or send it theirs, give up and end;
    another instance answers all the while; the same instance is there again under its next generation."""
    with made(channel, (3, 20, 30), (1, 1, 1), "a") as a, made(channel, (20, 30), (1, 1), "b") as b:
        a.wait_ready()
        b.wait_ready()
        for request in requests(6, 1000):
            a.submit(request)
        a.wait(lambda: all(len(answer.tokens) > 3 for answer in a.answers.values()), 60, "generating")
        for request in requests(12, 24):
            b.submit(request)
        os.kill(a.workers["a/s1n0"].pid, signal.SIGKILL)
        killed = time.monotonic()
        while a.failed is None and time.monotonic() < killed + 60:
            a.serve(0.01)
            b.serve(0.01)
        assert time.monotonic() - killed < NOTICED_S
        assert a.failed is not None
        assert "a/s1n0" in f"{a.failed.node} {a.failed.reason}"
        a.wait(lambda: all(answer.error for answer in a.answers.values()), 20, "rid of its requests")
        for process in a.processes:
            process.wait(NOTICED_S)
        b.wait(lambda: all(answer.ended for answer in b.answers.values()), 60, "all answers of the other")
        assert tokens(b.answers) == expected
        assert b.failed is None
        with made(channel, (3, 20, 30), (1, 1, 1), "a", generation=2) as again:
            again.wait_ready()
            assert tokens(again.generate(requests(12, 24))) == expected


def test_a_worker_that_stops_before_all_are_connected_is_named() -> None:
    """The others' communicators wait for it; the instance fails in time, and nothing is left."""
    placement = stages(cuts=(3, 30), nodes=(1, 1), engine="mock", options={"kv_blocks": 64})
    with InstanceUnderTest(placement, channel="gloo", start_timeout_s=8, silence_s=30) as instance:
        instance.wait(lambda: "s1n0" in instance.workers, 60, "started")
        os.kill(instance.workers["s1n0"].pid, signal.SIGSTOP)
        try:
            instance.wait(lambda: instance.failed is not None, 60, "failed")
            assert instance.failed is not None
            assert "s1n0" in f"{instance.failed.node} {instance.failed.reason}"
        finally:
            instance.workers["s1n0"].kill()  # as its agent does
        for process in instance.processes:
            process.wait(NOTICED_S)


# ------------------------------------------------------------ a worker whose peer cannot be reached


class OneWorker:
    """A worker of stage 0 of two, and its scheduler's part."""

    def __init__(self, folder: Path, channel: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = Router(self.context, f"ipc://{folder}/scheduler")
        self.spec = stages(cuts=(3, 30), nodes=(1, 1), engine="mock", options={"kv_blocks": 64})[0][0][0]
        command = worker_process.command(
            scheduler=self.router.address,
            node=self.spec.node,
            sockets=str(folder),
            channel=channel,
        )
        self.process = subprocess.Popen([sys.executable, *command])
        self.heard: list[wire.AnyMessage] = []

    def send(self, message: wire.Message) -> None:
        self.router.send(self.spec.node, message)

    def wait_for(self, kind: type[wire.Message], timeout_s: float = 60.0) -> wire.Message:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.router.socket.poll(100)
            for peer, message in self.router.drain():
                if isinstance(message, wire.Heartbeat):
                    self.router.tell(peer, message)
                self.heard.append(message)
            for message in self.heard:
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} within {timeout_s:g} s: {self.heard}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.router.close(linger_ms=0)
        self.context.term()


@pytest.fixture
def one_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OneWorker]:
    with contextlib.closing(OneWorker(tmp_path, request.param)) as worker:
        yield worker


@pytest.mark.parametrize(
    ("one_worker", "number"), [("zmq", signal.SIGINT), ("gloo", signal.SIGTERM)], indirect=["one_worker"]
)
def test_who_is_not_reached_is_named_and_a_signal_ends_the_set_up_at_once(
    one_worker: OneWorker, number: signal.Signals, tmp_path: Path
) -> None:
    one_worker.wait_for(wire.WorkerHello)
    one_worker.send(wire.LoadStage(spec=one_worker.spec, tokens_address=""))
    one_worker.wait_for(wire.StageLoaded)
    nobody = f"ipc://{tmp_path}/nobody gloo@127.0.0.1:9"
    one_worker.send(wire.Wire(peers={"s1n0": nobody}, senders=("s1n0",)))
    reaching = one_worker.wait_for(wire.Reaching)
    assert isinstance(reaching, wire.Reaching)
    assert reaching.unreached == ("s1n0",)
    assert one_worker.process.poll() is None
    one_worker.process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        one_worker.process.wait(5)
    assert one_worker.process.poll() is not None
