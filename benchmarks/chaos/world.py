"""A system under test: its config, its processes, what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.wanted import CHANGES, Change, Layout, read_changes, write_wanted
from coral.testing.system import ServingSystem
from coral.testing.tiny import make_tiny

MODEL = "tiny"
LAYERS = 6
DEVICES = 64
"""Of one machine: as many as a machine type of the local cloud may have."""
MOCK_VOCAB = 97
"""Tokens that are one printable character each, or one of the three specials."""
PLUGIN = Path(__file__).with_name("wanted.py")
ROOT = PLUGIN.parents[2]


def config(
    folder: Path,
    *,
    engine: str,
    models: Sequence[str] = (MODEL,),
    machines: int = 1,
    machine: Mapping[str, Any] = {},
    step_s: float = 0.01,
    every_s: float = 1.0,
    disaggregate: bool = False,
    use: Mapping[str, Any] = {},
    serve: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """A config whose planner reads `folder/wanted.json`. `step_s` is what a step of the mock takes; `use`,
    `machine` and `serve` are laid over the sections `engine`, of the machine type, and `serve`."""
    model = {
        "source": str(make_tiny("llama", folder / "tiny", layers=LAYERS)),
        "slo": {"prefill": "10s", "decode": "2s"},
        "demand": {"requests_per_s": 1, "input_tokens": 20, "output_tokens": 20},
        "dtype": "float32",
    }
    options = {"vocab": MOCK_VOCAB, "cost": {"overhead_s": step_s}} if engine == "mock" else {}
    cell = {"name": "cell", "memory": "1GiB", "devices": DEVICES, "count": machines, **machine}
    return {
        "models": [{"name": name, **model} for name in models],
        "engine": {"use": engine, **options, **use},
        "clouds": [{"use": "local", "folder": str(folder / "cloud"), "machines": [cell]}],
        "generate": {"max_nodes": 1},
        "plan": {
            "min_saving": 0,
            "every": every_s,
            "planner": {"use": "wanted", "file": str(folder / "wanted.json"), "machines": machines},
        },
        "plugins": {"paths": [str(PLUGIN)]},
        "serve": {
            "http": "127.0.0.1:0",
            "grace": 20,
            "drain_timeout": 30,
            "max_inflight": 4096,
            "disaggregate": disaggregate,
            **serve,
        },
        "state": {"folder": str(folder / "state")},
    }


class World:
    """`folder` holds its files; `system` runs until `close`. `beside`: layouts of other models."""

    def __init__(
        self,
        folder: Path,
        layouts: Sequence[Layout],
        settings: Mapping[str, Any],
        beside: Mapping[str, list[Layout]] = {},
    ) -> None:
        self._wanted = folder / "wanted.json"
        self._changes = folder / "changes"
        self._beside = beside
        self.want(layouts)
        self.system = ServingSystem(
            settings, folder, env={"PYTHONPATH": str(ROOT), CHANGES: str(self._changes)}
        )

    def want(self, layouts: Sequence[Layout]) -> None:
        """From the next epoch on."""
        write_wanted(self._wanted, {MODEL: list(layouts), **self._beside})

    def changes(self) -> list[Change]:
        """Of instances, in order."""
        return read_changes(self._changes)

    def instances(self) -> list[dict[str, Any]]:
        """Those that have not ended."""
        return [one for one in self.system.status()["instances"] if one["state"] not in ("gone", "failed")]

    def settled(self, count: int) -> bool:
        """Exactly so many instances are there, all of them ready, and nothing else is about to change."""
        there = self.instances()
        return len(there) == count and all(one["state"] == "ready" for one in there)

    def all_free(self) -> bool:
        """No request is in flight, and every node of every instance has all of its KV blocks."""
        nodes = [node for one in self.instances() for stage in one["stages"] for node in stage["nodes"]]
        free = all(
            node.get("engine", {}).get("free_blocks") == node["kv"]["blocks"]
            for node in nodes
            if "kv" in node
        )
        return free and not self.system.status()["requests"]["in_flight"]

    def close(self) -> None:
        self.system.kill_all()
