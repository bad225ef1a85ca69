"""A scheduler and workers as real processes, on the mock engine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from coral.core.serve.net import wire
from coral.core.serve.net.transport import LARGEST
from coral.testing.instance import Answer, InstanceUnderTest, stages
from coral.types.request import GenerateRequest, Sampling, Token

STEP = {"overhead_s": 0.002}


def one_two_one(**options: Any) -> InstanceUnderTest:
    placement = stages(
        cuts=(3, 20, 30),
        nodes=(1, 2, 1),
        engine="mock",
        options={"kv_blocks": 256, "cost": STEP, **options},
        weights={"s1n0": 2.0, "s1n1": 1.0},
    )
    return InstanceUnderTest(placement)


def requests(count: int, *, output: int = 24, spread: int = 20) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            id=f"r{number}",
            model="model",
            prompt_ids=tuple(range(number, number + 5 + number * spread)),
            sampling=Sampling(temperature=0.0, max_tokens=output),
        )
        for number in range(count)
    ]


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.tokens for name, answer in answers.items()}


@pytest.fixture(scope="module")
def roomy() -> Iterator[InstanceUnderTest]:
    """An instance with room for all, ready; only for tests that leave it as they found it."""
    with one_two_one() as instance:
        instance.wait_ready()
        yield instance


@pytest.fixture(scope="module")
def expected(roomy: InstanceUnderTest) -> dict[str, list[int]]:
    """What each request gives when it is alone."""
    alone: dict[str, list[int]] = {}
    for request in requests(12):
        alone |= tokens(roomy.generate([request]))
    return alone


def test_concurrent_requests_get_what_each_gets_alone(
    roomy: InstanceUnderTest, expected: dict[str, list[int]]
) -> None:
    answers = roomy.generate(requests(12), late=4)
    assert all(answer.finish == "length" for answer in answers.values())
    assert tokens(answers) == expected
    stats = roomy.settled()
    assert stats.preemptions == 0
    picks = stats.picks
    total = picks["s0n0"]
    assert total == picks["s2n0"] == picks["s1n0"] + picks["s1n1"]
    assert abs(picks["s1n0"] - total * 2 / 3) <= 1


def test_ready_says_what_it_can_hold(roomy: InstanceUnderTest) -> None:
    ready = roomy.wait_ready()
    assert ready.kv_tokens == 256 * 16
    assert ready.max_request_tokens == 2048
    assert set(ready.capacities) == {"s0n0", "s1n0", "s1n1", "s2n0"}


def test_small_kv_preempts_and_replays_to_the_same_tokens(expected: dict[str, list[int]]) -> None:
    placement = stages(
        cuts=(3, 20, 30),
        nodes=(1, 2, 1),
        engine="mock",
        options={"kv_blocks": 36, "block_size": 8, "cost": STEP},
    )
    with InstanceUnderTest(placement, expected_output_tokens=1) as instance:
        instance.wait_ready()
        answers = instance.generate(requests(12), late=8)
        assert tokens(answers) == expected
        assert instance.settled().preemptions > 0


def test_what_no_route_can_hold_is_refused_with_the_limit(roomy: InstanceUnderTest) -> None:
    (long,) = requests(1, output=5000)
    answer = roomy.generate([long])["r0"]
    assert answer.status == 400
    assert "at most 2048 tokens" in answer.error


def test_abort_frees_all_blocks(roomy: InstanceUnderTest) -> None:
    for request in requests(4, output=1500):
        roomy.submit(request)
    roomy.wait(lambda: all(len(roomy.answers[f"r{n}"].tokens) > 2 for n in range(4)), 30, "some tokens")
    roomy.abort("r0", "r1", "r2", "r3", "nobody")
    began = time.monotonic()
    stats = roomy.settled(5)
    assert time.monotonic() - began < 2
    assert stats.running == 0
    assert not any(answer.ended for answer in roomy.answers.values() if answer is roomy.answers["r0"])


def test_idle_processes_use_no_processor(roomy: InstanceUnderTest) -> None:
    roomy.generate(requests(3))
    roomy.settled(5)
    before = [cpu_s(process.pid) for process in roomy.processes]
    deadline = time.monotonic() + 3
    roomy.wait(lambda: time.monotonic() > deadline, 5, "idle")
    for process, then in zip(roomy.processes, before, strict=True):
        assert cpu_s(process.pid) - then < 0.5


def test_workers_say_how_long_they_step_and_wait(roomy: InstanceUnderTest) -> None:
    roomy.generate(requests(3))
    before = roomy.settled(5).nodes
    deadline = time.monotonic() + 1
    roomy.wait(lambda: time.monotonic() > deadline, 5, "idle")
    for node, after in roomy.fresh_stats().nodes.items():
        assert 0 < after.step_seconds < after.step_seconds + after.wait_seconds <= after.seconds
        idle = after.seconds - before[node].seconds
        assert idle > 0.9
        assert idle / 2 < after.wait_seconds - before[node].wait_seconds <= idle
        assert after.step_seconds == before[node].step_seconds


def test_malformed_and_unexpected_messages_change_nothing(
    roomy: InstanceUnderTest, expected: dict[str, list[int]]
) -> None:
    roomy.send(wire.Feed(instance="x", generation=1, sender="y", sequence=1, tokens=()))
    name = roomy.peer.encode()
    for frame in (b"", b"\x01", b"\x07abc", os.urandom(300)):
        roomy.control.socket.send_multipart([name, frame])
    assert tokens(roomy.generate(requests(2))) == {n: expected[n] for n in ("r0", "r1")}
    roomy.settled(5)


def test_strangers_on_its_sockets_change_nothing(
    roomy: InstanceUnderTest, expected: dict[str, list[int]]
) -> None:
    """Bytes that are no protocol, a frame without end, messages that are well formed but of nobody here."""
    instance = roomy.spec.instance
    token = Token(request="r", attempt=0, position=0, token=1)
    messages: list[wire.Message] = [
        wire.WorkerHello(node="stranger", pid=1, data_address="tcp://127.0.0.1:1"),
        wire.WorkerFailed(node="stranger", reason="says a stranger"),
        wire.SequenceOpened(node="stranger", request="r0", attempt=0),
        wire.SequencesReleased(node="stranger", sequences=(("r0", 0),)),
        wire.Tokens(instance=instance, node="stranger", tokens=(token,)),
        wire.Feed(instance=instance, generation=1, sender="stranger", sequence=9, tokens=()),
        wire.Heartbeat(at_s=0.0),
    ]
    held_before = [psutil.Process(process.pid).memory_info().rss for process in roomy.processes]
    listening = listening_paths(roomy)
    assert len(listening) == len(roomy.processes)
    assert not any(psutil.Process(one.pid).net_connections("tcp") for one in roomy.processes)
    with zmq.Context() as context:
        for path in listening:
            with connection(path) as raw, contextlib.suppress(OSError):
                raw.sendall(os.urandom(3000))
            assert endless_frame(path) < LARGEST, "cut off before it is held"
            for identity in (b"stranger", b"\xff\xfe"):
                with context.socket(zmq.DEALER) as dealer:
                    dealer.identity, dealer.linger = identity, 2000
                    dealer.connect(f"ipc://{path}")
                    for frame in (b"", b"\x01", os.urandom(300), b"\x01" + b"\x91" * 100_000):
                        dealer.send(frame)
                        dealer.send_multipart([frame, frame, frame])
                    for _ in range(50):
                        for message in messages:
                            dealer.send(wire.encode(message))
    assert tokens(roomy.generate(requests(2))) == {n: expected[n] for n in ("r0", "r1")}
    roomy.settled(5)
    for process, before in zip(roomy.processes, held_before, strict=True):
        assert psutil.Process(process.pid).memory_info().rss - before < 30 << 20


def listening_paths(instance: InstanceUnderTest) -> set[str]:
    """The sockets of its processes, in their private folder."""
    return {
        str(one.laddr)
        for process in instance.processes
        for one in psutil.Process(process.pid).net_connections("unix")
        if str(one.laddr).startswith(instance.listening.sockets)
        and not Path(str(one.laddr)).name.startswith("c")
    }


def connection(path: str) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(5)
    raw.connect(path)
    return raw


def endless_frame(path: str) -> int:
    """Bytes taken of a ZMTP frame that says it has a terabyte."""
    with connection(path) as raw:
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        raw.sendall(greeting + b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER")
        raw.recv(64, socket.MSG_WAITALL)
        sent = 0
        try:
            raw.sendall(b"\x02" + (1 << 40).to_bytes(8, "big"))
            while sent < 2 * LARGEST:
                sent += raw.send(bytes(1 << 20))
        except OSError:  # cut off
            return sent
    return sent


def test_a_coordinator_that_comes_back_gets_an_idle_instance(
    roomy: InstanceUnderTest, expected: dict[str, list[int]]
) -> None:
    for request in requests(3, output=1500):
        roomy.submit(request)
    roomy.wait(lambda: all(roomy.answers[f"r{n}"].tokens for n in range(3)), 30, "some tokens")
    roomy.come_back()
    roomy.wait_ready()
    assert roomy.settled(5).running == 0
    assert tokens(roomy.generate(requests(2))) == {n: expected[n] for n in ("r0", "r1")}


def test_a_killed_node_fails_the_instance_and_names_what_is_lost() -> None:
    with one_two_one() as instance:
        instance.wait_ready()
        for request in requests(4, output=1500):
            instance.submit(request)
        instance.wait(lambda: all(a.tokens for a in instance.answers.values()), 30, "some tokens")
        instance.workers["s1n1"].kill()
        began = time.monotonic()
        instance.wait(lambda: instance.failed is not None, 10, "failed")
        assert time.monotonic() - began < 10
        assert instance.failed is not None
        assert instance.failed.node == "s1n1"
        instance.wait(lambda: all(a.ended for a in instance.answers.values()), 5, "lost")
        assert all("s1n1" in answer.error for answer in instance.answers.values())
        all_end(instance, 10)


def test_a_node_that_hangs_without_closing_its_connection_is_noticed_within_10_s() -> None:
    with one_two_one() as instance:
        instance.wait_ready()
        os.kill(instance.workers["s2n0"].pid, signal.SIGSTOP)
        try:
            instance.wait(lambda: instance.failed is not None, 10, "failed")
        finally:
            os.kill(instance.workers["s2n0"].pid, signal.SIGCONT)
        assert instance.failed is not None
        assert instance.failed.node == "s2n0"
        assert "silent" in instance.failed.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fail_at_load": "no weights here"}, "no weights here"),
        ({"fail_at_step": 3}, "step 3 fails"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_an_engine_that_fails_is_named_with_its_reason(options: dict[str, Any], reason: str) -> None:
    node = {} if "no_such" in options else {"fail_node": "s1n0"}
    with one_two_one(**options, **node) as instance:
        if "fail_at_step" in options:
            instance.wait_ready()
            for request in requests(3, output=100):
                instance.submit(request)
        instance.wait(lambda: instance.failed is not None, 60, "failed")
        assert instance.failed is not None
        assert reason in instance.failed.reason
        assert instance.failed.node == node.get("fail_node", instance.failed.node)
        all_end(instance, 30)  # a worker that had not dialled yet waits for its scheduler for the grace time


def test_a_node_that_never_appears_is_named_at_the_deadline() -> None:
    placement = stages(cuts=(3, 30), nodes=(1, 2), engine="mock")
    with InstanceUnderTest(placement, start_timeout_s=4, leave_out=["s1n1"]) as instance:
        instance.wait(lambda: instance.failed is not None, 30, "failed")
        assert instance.failed is not None
        assert "did not appear: s1n1" in instance.failed.reason
        all_end(instance, 10)


def test_it_drains_and_then_refuses() -> None:
    placement = stages(cuts=(30,), nodes=(2,), engine="mock", options={"cost": STEP})
    with InstanceUnderTest(placement) as instance:
        instance.wait_ready()
        first, second, late = requests(3)
        for request in (first, second):
            instance.submit(request)
        instance.send(wire.Drain())
        instance.submit(late)
        instance.wait(lambda: instance.drained, 30, "drained")
        assert instance.answers["r0"].finish == instance.answers["r1"].finish == "length"
        assert instance.answers["r2"].status == 503
        instance.send(wire.Shutdown())
        all_end(instance, 10)
        assert [process.returncode for process in instance.processes] == [0, 0, 0]


def test_without_a_coordinator_all_end_within_the_grace_time() -> None:
    placement = stages(cuts=(3, 30), nodes=(1, 1), engine="mock")
    with InstanceUnderTest(placement, grace_s=3) as instance:
        instance.wait_ready()
        instance.beating = False
        all_end(instance, 10)


def test_workers_end_when_their_scheduler_is_killed_also_while_loading() -> None:
    placement = stages(cuts=(3, 30), nodes=(1, 1), engine="mock", options={"load": 60})
    with InstanceUnderTest(placement, grace_s=3) as instance:
        instance.wait(lambda: len(instance.workers) == 2, 30, "workers started")
        deadline = time.monotonic() + 3
        instance.wait(lambda: time.monotonic() > deadline, 10, "loading")
        assert instance.scheduler is not None
        instance.scheduler.kill()
        all_end(instance, 12)


def all_end(instance: InstanceUnderTest, within_s: float) -> None:
    def running() -> Sequence[object]:
        return [process for process in instance.processes if process.poll() is None]

    instance.wait(lambda: not running(), within_s, "every process gone")
