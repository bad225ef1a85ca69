"""Coordinators that are killed and follow one another on one state folder, for tests and benchmarks."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coral.testing.system import ServingSystem
from coral.testing.waiting import wait_until


class Runs:
    """One coordinator after another on the same state folder; whatever happens, nothing outlives the test."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.config = config
        self.systems: list[ServingSystem] = []
        self._folder = folder

    def start(self) -> ServingSystem:
        folder = self._folder / f"run{len(self.systems)}"
        folder.mkdir()
        self.systems.append(ServingSystem(self.config, folder))
        return self.systems[-1]

    def kill(self) -> None:
        """kill -9 of the newest coordinator."""
        self.systems[-1].process.kill()
        self.systems[-1].process.wait(10)

    @property
    def config_path(self) -> Path:
        return self.systems[-1].log_path.with_name("coral.yaml")

    def processes(self) -> dict[int, str]:
        return {pid: line for one in self.systems for pid, line in one.processes().items()}

    def wait_gone(self, within_s: float = 10.0) -> None:
        wait_until(lambda: not self.processes(), within_s, f"the end of {self.processes()}")


@contextmanager
def running(config: dict[str, Any], folder: Path) -> Iterator[Runs]:
    runs = Runs(config, folder)
    try:
        yield runs
    finally:
        for one in runs.systems:
            one.kill_all()


def pids(state: dict[str, Any]) -> set[int]:
    """Of agents, and of the schedulers and workers of all instances that have not ended."""
    living = [one for one in state["instances"] if one["state"] not in ("gone", "failed")]
    nodes = [n for i in living for s in i["stages"] for n in s["nodes"]]
    return (
        {one["agent_pid"] for one in state["machines"] if one["state"] == "joined"}
        | {instance["scheduler"]["pid"] for instance in living}
        | {node["pid"] for node in nodes}
    )


def loads(state: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of loading, by node."""
    return {
        node["node"]: (node["engine"]["load_seconds"], node["engine"]["bytes_read"])
        for instance in state["instances"]
        for stage in instance["stages"]
        for node in stage["nodes"]
    }


def all_free(system: ServingSystem) -> bool:
    nodes = [n for i in system.status()["instances"] for s in i["stages"] for n in s["nodes"]]
    engines = [node.get("engine", {"requests": 1}) for node in nodes]
    return all(e["requests"] == 0 and e["free_blocks"] == e["total_blocks"] for e in engines)


class Stream(threading.Thread):
    """A client that reads a stream to its end, however it ends. `whole`: the end was as it should be."""

    def __init__(self, system: ServingSystem, body: Mapping[str, Any]) -> None:
        super().__init__(daemon=True)
        self.text = b""
        self.whole = False
        self.ended = False
        self._host = (system.url or "").removeprefix("http://")
        self._body = json.dumps({**body, "stream": True})
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        try:
            connection.request("POST", "/v1/completions", self._body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while part := answer.read1(4096):
                self.text += part
            self.whole = self.text.endswith(b"data: [DONE]\n\n")
        except (OSError, http.client.HTTPException):
            self.whole = False
        finally:
            connection.close()
            self.ended = True
