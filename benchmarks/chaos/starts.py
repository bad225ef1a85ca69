"""How long workers take from the order to a loaded stage: forked from a warmed process, and as fresh ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.chaos.world import LAYERS
from coral.core.plugins import load_plugins
from coral.core.serve import worker as worker_process
from coral.core.serve.coordinator.launches import WORKER
from coral.core.serve.net import wire
from coral.testing.agent import PlayedCoordinator
from coral.testing.instance import stages
from coral.testing.listening import Listening
from coral.testing.tiny import make_tiny
from coral.types.stage import StageSpec

LIMIT_S = 600.0


class Starts:
    """A real agent, and a scheduler's socket that workers dial."""

    def __init__(self, folder: Path, engine: str) -> None:
        source = str(make_tiny("llama", folder / "tiny", layers=LAYERS))
        placement = stages(cuts=(LAYERS,), nodes=(1,), engine=engine, source=source, memory_bytes=400 << 20)
        self._spec: StageSpec = placement[0][0][0]
        registry = load_plugins()
        self._engine = registry.build("engine", engine, registry.options_model("engine", engine)())
        self._listening = Listening(network=False)
        self._scheduler = self._listening.router()
        self._nowhere = f"ipc://{self._listening.sockets}/nobody"
        self._agent = PlayedCoordinator(folder, 600.0)
        self._agent.expect(wire.AgentHello)
        self._count = 0

    def close(self) -> None:
        self._agent.close()
        self._scheduler.close(linger_ms=0)
        self._listening.close()

    def seconds(self, workers: int, *, forked: bool) -> float:
        """From the first order until the last stage is loaded; then they are ended."""
        names = [f"w{self._count + i}" for i in range(workers)]
        self._count += workers
        began = time.monotonic()
        for name in names:
            argv = worker_process.command(
                scheduler=self._scheduler.address,
                node=name,
                sockets=self._listening.sockets,
                grace_s=600.0,
            )
            launch = self._engine.launch(argv, threads=1, devices=(0,))
            preload = (WORKER, *launch.preload) if forked else ()
            self._agent.send(
                wire.StartProcess(process=name, argv=launch.argv, env=launch.env, preload=preload)
            )
        self._until_loaded(names)
        took = time.monotonic() - began
        for name in names:
            self._agent.send(wire.StopProcess(process=name, grace_s=5.0))
        for _ in names:
            self._agent.expect(wire.ProcessExited, timeout_s=60.0)
        return took

    def _until_loaded(self, names: Sequence[str]) -> None:
        loaded: set[str] = set()
        deadline = time.monotonic() + LIMIT_S
        while loaded < set(names):
            assert time.monotonic() < deadline, f"{set(names) - loaded} are not up; {self._agent.log()}"
            self._scheduler.socket.poll(200)
            self._agent.send(wire.Heartbeat(at_s=time.time()))
            for node, message in self._scheduler.drain():
                if isinstance(message, wire.WorkerHello):
                    spec = replace(self._spec, node=node)
                    self._scheduler.send(node, wire.LoadStage(spec=spec, tokens_address=self._nowhere))
                elif isinstance(message, wire.StageLoaded):
                    loaded.add(node)
                elif isinstance(message, wire.WorkerFailed):
                    raise AssertionError(f"{node}: {message.reason}")


def starts(folder: Path, *, engine: str, workers: Sequence[int]) -> dict[str, Any]:
    """Both ways for each number of workers, in one run; `warming` is the first fork, with its imports."""
    one = Starts(folder, engine)
    try:
        record: dict[str, Any] = {"warming_s": round(one.seconds(1, forked=True), 2)}
        for count in workers:
            forked, fresh = one.seconds(count, forked=True), one.seconds(count, forked=False)
            record[f"{count}_forked_s"] = round(forked, 2)
            record[f"{count}_fresh_s"] = round(fresh, 2)
            record[f"{count}_fresh_over_forked"] = round(fresh / forked, 1)
        return record
    finally:
        one.close()
