"""A whole instance for tests: a scheduler and its workers as real processes, and a coordinator's part.

Use it as a context manager; every process it started has ended when it leaves::

    with InstanceUnderTest(stages(cuts=(7, 30), nodes=(1, 2), engine="mock")) as instance:
        answers = instance.generate([request])
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import zmq
from msgspec import Struct

from coral.core.serve import instance as scheduler_process
from coral.core.serve import worker as worker_process
from coral.core.serve.net import wire
from coral.core.serve.net.transport import Unreachable
from coral.testing.listening import Listening
from coral.types.hardware import NodeType
from coral.types.request import FinishReason, GenerateRequest, Leg, Token
from coral.types.stage import InstanceSpec, StageSpec

Placement = tuple[tuple[tuple[StageSpec, float], ...], ...]


class InstanceFault(AssertionError):
    """The instance did what a test did not expect, with what its processes said last."""


class Answer(Struct, kw_only=True):
    """What has come of one request. `error` is set where it was refused or lost."""

    tokens: list[int]
    received: list[Token]
    finish: FinishReason | None = None
    error: str = ""
    status: int = 0

    @property
    def ended(self) -> bool:
        return self.finish is not None or bool(self.error)


def stages(
    *,
    cuts: Sequence[int],
    nodes: Sequence[int],
    engine: str,
    source: str = "",
    model: str = "model",
    options: dict[str, Any] | None = None,
    weights: dict[str, float] | None = None,
    max_model_len: int = 2048,
    step_tokens: int = 64,
    step_requests: int = 16,
    dtype: str = "float32",
    memory_bytes: int = 2 << 30,
    instance: str = "instance",
    generation: int = 1,
    prefix: str = "",
) -> Placement:
    """Stage s holds layers `[cuts[s-1], cuts[s])` on `nodes[s]` nodes called `s0n0`, `s0n1`, ….

    The last cut is the number of layers. `weights` by node name; else all are 1. `prefix` comes before the
    names of nodes, which differ between instances that know one another.
    """
    bounds = [0, *cuts]
    return tuple(
        tuple(
            (
                StageSpec(
                    instance=instance,
                    generation=generation,
                    node=f"{prefix}s{stage}n{number}",
                    stage=stage,
                    stages=len(cuts),
                    first_layer=bounds[stage],
                    end_layer=bounds[stage + 1],
                    layers_total=bounds[-1],
                    source=source,
                    model=model,
                    engine=engine,
                    dtype=dtype,
                    node_type=NodeType("cpu", 1),
                    devices=(0,),
                    device_kind="cpu",
                    threads=1,
                    memory_bytes=memory_bytes,
                    max_model_len=max_model_len,
                    max_step_tokens=step_tokens,
                    max_step_requests=step_requests,
                    options=options or {},
                ),
                (weights or {}).get(f"{prefix}s{stage}n{number}", 1.0),
            )
            for number in range(nodes[stage])
        )
        for stage in range(len(cuts))
    )


class InstanceUnderTest:
    """Plays the coordinator: submits, collects tokens, aborts, asks for stats."""

    def __init__(
        self,
        placement: Placement,
        *,
        expected_output_tokens: int = 16,
        max_waiting: int = 256,
        start_timeout_s: float = 120.0,
        silence_s: float = 8.0,
        grace_s: float = 20.0,
        kv_lease_s: float = 60.0,
        leave_out: Sequence[str] = (),
        worker_python: str = sys.executable,
        channel: str = "zmq",
        network: bool = False,
    ) -> None:
        """`leave_out`: nodes whose worker is never started. `worker_python`: the workers' interpreter.
        `network`: all sockets are TCP, with keys."""
        first = placement[0][0][0]
        self.spec = InstanceSpec(
            instance=first.instance,
            generation=first.generation,
            model=first.model,
            phase="mixed",
            stages=placement,
            expected_output_tokens=expected_output_tokens,
            max_model_len=first.max_model_len,
            max_waiting=max_waiting,
            kv_lease_s=kv_lease_s,
        )
        self.ready: wire.InstanceReady | None = None
        self.failed: wire.InstanceFailed | None = None
        self.drained = False
        self.stats: wire.InstanceStats | None = None
        self.answers: dict[str, Answer] = {}
        self.said_of_kv: deque[wire.Begun | wire.KvAwaited | wire.HandedOver] = deque()
        """What the instance has said of requests that are handed over, until somebody takes it from here."""
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._start_timeout_s = start_timeout_s
        self._silence_s = silence_s
        self._grace_s = grace_s
        self._leave_out = leave_out
        self._worker_python = worker_python
        self._channel = channel
        self.listening = Listening(network=network)
        self.control = self.listening.router()
        self._tokens = self.listening.pull()
        self._logs = tempfile.TemporaryDirectory(prefix="coral-instance-")
        self._beaten = 0.0
        self._stats_seen = 0
        self.beating = True
        self.scheduler: subprocess.Popen[bytes] | None = None

    @property
    def peer(self) -> str:
        """The name under which its scheduler has dialled."""
        return scheduler_process.identity(self.spec.instance, self.spec.generation)

    def __enter__(self) -> InstanceUnderTest:
        command = scheduler_process.command(
            coordinator=self.control.address,
            instance=self.spec.instance,
            generation=self.spec.generation,
            sockets=self.listening.sockets,
            start_timeout_s=self._start_timeout_s,
            silence_s=self._silence_s,
            grace_s=self._grace_s,
        )
        self.scheduler = self._start("scheduler", command)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.control.close(linger_ms=0)
        self._tokens.close(linger_ms=0)
        self.listening.close()
        self._logs.cleanup()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        started = [self.scheduler] if self.scheduler else []
        return [*started, *self.workers.values()]

    def _start(
        self, name: str, command: Sequence[str], python: str = sys.executable
    ) -> subprocess.Popen[bytes]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
        env |= self.listening.environment
        with (Path(self._logs.name) / name.replace("/", "-")).open("wb") as log:
            return subprocess.Popen([python, *command], stderr=log, env=env, start_new_session=True)

    def said(self) -> str:
        """The last lines of what every process wrote."""
        parts = []
        for file in sorted(Path(self._logs.name).iterdir()):
            tail = file.read_text(errors="replace").splitlines()[-25:]
            parts.append(f"--- {file.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    # ------------------------------------------------------------ the coordinator's part

    def wait_ready(self, timeout_s: float = 120.0) -> wire.InstanceReady:
        self.wait(lambda: self.ready is not None or self.failed is not None, timeout_s, "ready")
        if self.ready is None:
            raise InstanceFault(f"not ready: {self.failed}\n{self.said()}")
        return self.ready

    def submit(self, request: GenerateRequest, leg: Leg = "whole") -> None:
        self.answers[request.id] = Answer(tokens=list(request.generated), received=[])
        self.control.send(self.peer, wire.Submit(request=request, leg=leg))

    def abort(self, *requests: str) -> None:
        self.control.send(self.peer, wire.Abort(requests=requests))

    def send(self, message: wire.Message) -> None:
        self.control.send(self.peer, message)

    def come_back(self) -> None:
        """What a coordinator does that has been started anew: it takes tokens at another address, and
        knows of no request."""
        self._tokens.close(linger_ms=0)
        self._tokens = self.listening.pull()
        self.ready = None
        self.answers.clear()
        self.send(wire.RunInstance(spec=self.spec, tokens_address=self._tokens.address))

    def generate(
        self, requests: Iterable[GenerateRequest], *, late: int = 0, timeout_s: float = 120.0
    ) -> dict[str, Answer]:
        """Submit all and wait for the last. With `late`, all but the first `late` are held back and sent
        one by one, each after some more tokens have come."""
        waiting = list(requests)
        ids = [request.id for request in waiting]
        for request in waiting[: late or len(waiting)]:
            self.submit(request)
        waiting = waiting[late:] if late else []
        seen = 0
        while waiting:
            target = seen + 3
            self.wait(
                lambda target=target: (
                    self._received(ids) >= target  # type: ignore[misc]
                    or all(self.answers[i].ended for i in ids if i in self.answers)
                ),
                timeout_s,
                "more tokens",
            )
            seen = self._received(ids)
            self.submit(waiting.pop(0))
        self.wait(lambda: all(self.answers[i].ended for i in ids), timeout_s, "all answers")
        return {i: self.answers[i] for i in ids}

    def settled(self, timeout_s: float = 30.0) -> wire.InstanceStats:
        """Wait until nothing is in flight and all blocks are free; the stats then."""

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            stats = self.fresh_stats(timeout_s)
            nodes = stats.nodes.values()
            if not stats.running + stats.waiting and all(n.free_blocks == n.total_blocks for n in nodes):
                return stats
        raise InstanceFault(f"not idle within {timeout_s:g} s: {self.stats}\n{self.said()}")

    def fresh_stats(self, timeout_s: float = 30.0) -> wire.InstanceStats:
        """Asked for now; every node has answered."""
        before = self._stats_seen
        self.send(wire.AskStats())
        self.wait(lambda: self._stats_seen > before, timeout_s, "answering with stats")
        assert self.stats is not None  # at least one was seen
        return self.stats

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Serve the sockets until the condition holds; raises InstanceFault when it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise InstanceFault(
                    f"not {what} within {timeout_s:g} s; failed: {self.failed}; {self.stats}\n{self.said()}"
                )
            self.serve(0.02)

    def serve(self, seconds: float) -> None:
        """Take what has arrived, waiting at most so long for the first message."""
        poller = zmq.Poller()
        poller.register(self.control.socket, zmq.POLLIN)
        poller.register(self._tokens.socket, zmq.POLLIN)
        poller.poll(int(seconds * 1000))
        for _, message in self.control.drain():
            self._obey(message)
        for tokens in self._tokens.drain():
            if isinstance(tokens, wire.Tokens):
                self._take(tokens.tokens)
        now = time.monotonic()
        if self.beating and now - self._beaten >= 1.0 and self.ready is not None:
            self._beaten = now
            with contextlib.suppress(Unreachable):  # a scheduler that has ended needs none
                self.control.send(self.peer, wire.Heartbeat(at_s=time.time()))

    def _received(self, ids: Sequence[str]) -> int:
        return sum(len(self.answers[i].received) for i in ids if i in self.answers)

    def _obey(self, message: wire.AnyMessage) -> None:
        match message:
            case wire.SchedulerHello() if not self.workers:
                run = wire.RunInstance(spec=self.spec, tokens_address=self._tokens.address)
                self.control.send(self.peer, run)
                for stage in self.spec.stages:
                    for spec, _ in stage:
                        if spec.node not in self._leave_out:
                            command = worker_process.command(
                                scheduler=message.address,
                                node=spec.node,
                                sockets=self.listening.sockets,
                                channel=self._channel,
                                grace_s=self._grace_s,
                            )
                            self.workers[spec.node] = self._start(spec.node, command, self._worker_python)
            case wire.InstanceReady():
                self.ready = message
            case wire.InstanceFailed():
                self.failed = message
            case wire.InstanceStats():
                self.stats = message
                self._stats_seen += 1
            case wire.Drained():
                self.drained = True
            case wire.Begun() | wire.KvAwaited() | wire.HandedOver():
                self.said_of_kv.append(message)
            case wire.RequestRefused():
                answer = self.answers[message.request]
                answer.error, answer.status = message.reason, message.status
            case wire.RequestLost():
                self.answers[message.request].error = message.reason
            case _:
                pass  # heartbeats and progress

    def _take(self, tokens: Iterable[Token]) -> None:
        """Keep each position once, in order: what an actual coordinator delivers to a client."""
        for token in tokens:
            answer = self.answers.get(token.request)
            if answer is None:
                continue  # asked by the coordinator before this one
            answer.received.append(token)
            by_position = {t.position: t for t in answer.received}
            while (following := by_position.get(len(answer.tokens))) is not None:
                answer.tokens.append(following.token)
                answer.finish = following.finish or answer.finish
