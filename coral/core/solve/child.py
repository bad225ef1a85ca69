"""`python -m coral.core.solve.child`: builds one solver, solves what it is asked, ends with its caller."""

from __future__ import annotations

import contextlib
import faulthandler
import resource
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coral.core.plugins import load_plugin
from coral.core.solve.frames import Answer, Ask, Failed, Found, Frames, Ready
from coral.core.solve.lifeline import tie_to
from coral.core.solve.process import SolverSetup
from coral.errors import CoralError
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program, Solution

FIRST_TO_GO = "1000"
"""Of this process and its caller, the kernel takes this one where memory runs out."""


def main() -> int:
    setup = msgspec.json.decode(sys.argv[1], type=SolverSetup)
    tie_to(setup.lifeline)
    faulthandler.enable()
    _limit(setup.memory_bytes)
    frames = Frames(socket.socket(fileno=setup.socket))
    try:
        options = setup.options
        solver: Solver = load_plugin(setup.record).build("solver", setup.name, options)
        frames.send(Ready(features=solver.features))
    except Exception as error:
        frames.send(_failed(error, f"solver {setup.name!r} cannot be built"))
        return 1
    while True:
        try:
            message, arrays = frames.receive()
        except EOFError:
            return 0
        assert isinstance(message, Ask)
        try:
            solution = _solve(solver, message, arrays, frames)
        except Exception as error:
            frames.send(_failed(error, f"solver {setup.name!r} failed"))
            continue
        found = {"x": solution.x, "row_duals": solution.row_duals}
        frames.send(
            Answer(
                status=solution.status,
                termination=solution.termination,
                objective=solution.objective,
                bound=solution.bound,
                work=solution.work,
                seconds=solution.seconds,
            ),
            {name: _floats(array) for name, array in found.items() if array is not None},
        )


def _solve(solver: Any, ask: Ask, arrays: dict[str, Any], frames: Frames) -> Solution:
    start = arrays.pop("start", None)
    more: dict[str, Any] = {}
    if solver.features.incumbents:
        more["on_incumbent"] = lambda x, bound: frames.send(Found(bound=float(bound)), {"x": _floats(x)})
    solution: Solution = solver.solve(
        Program(**arrays),
        work_limit=ask.work_limit,
        time_limit_s=ask.time_limit_s,
        gap=ask.gap,
        start=start,
        **more,
    )
    return solution


def _floats(array: object) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float64).ravel()


def _failed(error: Exception, what: str) -> Failed:
    if isinstance(error, CoralError):
        return Failed(error=type(error).__name__, message=error.message, mend=error.mend)
    return Failed(error="SolverError", message=f"{what}: {type(error).__name__}: {error}", mend=None)


def _limit(most_bytes: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # a dump of a large program takes a while
    with contextlib.suppress(OSError):  # not everywhere; the limit below holds without it
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    if most_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


if __name__ == "__main__":
    sys.exit(main())
