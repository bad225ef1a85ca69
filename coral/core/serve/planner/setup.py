"""How the planner process is started: its command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

MODULE = "coral.core.serve.planner"


class Chosen(Struct, frozen=True, kw_only=True):
    """A `use:` section: the component's name and its options as plain JSON."""

    use: str
    options: dict[str, Any] = {}


class PlannerSetup(Struct, frozen=True, kw_only=True):
    """What the process is told by `--config-json`.

    `solver_time_limit_s`: most that one solve is given; where there is one the solver runs in a process of
    its own, which is killed when it overruns. `plugin_paths`: one-file plugins beside the config.
    `grace_s`: it leaves when the coordinator has been silent for so long. `solve_limit_s`: hard wall limit
    of one ask; the process is ended by the kernel when a planner overruns it, whoever else is alive
    (0: none).
    """

    planner: Chosen = Chosen(use="coral")
    solver: Chosen = Chosen(use="highs")
    solver_time_limit_s: float | None = None
    plugin_paths: tuple[str, ...] = ()
    grace_s: float = 30.0
    beat_s: float = 1.0
    solve_limit_s: float = 0.0


def planner_argv(setup: PlannerSetup, *, coordinator: str, library: Path) -> tuple[str, ...]:
    """The process' argv. It dials `coordinator` (a ROUTER) as a DEALER with identity `planner-<pid>`,
    says PlannerHello once library and solver are loaded, answers every PlanAsk with one PlanAnswer
    (of several waiting asks the newest is solved, the others are answered with an error), beats every
    `beat_s`, also while it solves, and leaves on Shutdown, on SIGTERM, or when its parent is gone."""
    return (
        sys.executable,
        "-m",
        MODULE,
        "--coordinator",
        coordinator,
        "--library",
        str(library),
        "--config-json",
        msgspec.json.encode(setup).decode(),
    )
