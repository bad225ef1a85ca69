"""The scheduler process between a coordinator and a worker that are sockets of the test."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import zmq

from coral.core.serve import instance as scheduler_process
from coral.core.serve.net import wire
from coral.core.serve.net.transport import Dealer, Router
from coral.testing.instance import stages
from coral.types.stage import InstanceSpec

M = TypeVar("M", bound=wire.Message)


def heard(take: Callable[[], list[wire.AnyMessage]], kind: type[M], within_s: float = 20.0) -> M:
    """The first message of that kind."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for message in take():
            if isinstance(message, kind):
                return message
        time.sleep(0.01)
    raise AssertionError(f"no {kind.__name__} within {within_s:g} s")


def test_a_worker_that_dials_before_the_coordinator_has_spoken_is_told_what_to_load(tmp_path: Path) -> None:
    placement = stages(cuts=(4,), nodes=(1,), engine="mock")
    spec = InstanceSpec(
        instance="instance",
        generation=1,
        model="model",
        phase="mixed",
        stages=placement,
        expected_output_tokens=4,
        max_model_len=64,
    )
    with zmq.Context() as context:
        control = Router(context, f"ipc://{tmp_path}/control")
        command = scheduler_process.command(
            coordinator=control.address, instance="instance", generation=1, sockets=str(tmp_path)
        )
        process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
        try:
            from_scheduler = lambda: [message for _, message in control.drain()]  # noqa: E731
            hello = heard(from_scheduler, wire.SchedulerHello)
            worker = Dealer(context, hello.address, identity="s0n0")
            worker.send(wire.WorkerHello(node="s0n0", pid=0, data_address="tcp://127.0.0.1:9"))
            time.sleep(0.5)  # it is there first
            control.send("instance#1", wire.RunInstance(spec=spec, tokens_address="tcp://127.0.0.1:9"))
            assert heard(worker.drain, wire.LoadStage).spec.node == "s0n0"
            control.send("instance#1", wire.Shutdown())
            assert process.wait(10) == 0
            worker.close(linger_ms=0)
        finally:
            process.kill()
            process.wait()
            control.close(linger_ms=0)
