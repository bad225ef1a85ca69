"""What it costs to hand a program to a solver: a process of its own, a modelling layer, a time limit.

`overhead`: a solve in a process of its own beside the same solve in this one, and the transfer alone.
`solve`: each installed solver, supervised, on the same wide programs (few rows, many integer columns).

    python -m benchmarks.solvers --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coral.core.plugins import Registry, load_plugins
from coral.core.solve import SupervisedSolver, supervised_solver
from coral.errors import CoralError
from coral.hookspecs.program_builder import ProgramBuilder
from coral.hookspecs.solver import Solver
from coral.testing.programs import random_covering
from coral.types.program import Program

ECHO = '''
"""A solver that answers at once: what is left is the transfer."""

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import Options
from coral.types.program import Solution, SolverFeatures


class EchoOptions(Options):
    pass


class Echo:
    features = SolverFeatures(integer=True, duals=False, start=False, deterministic_work_limit=True)

    def solve(self, program, **limits):
        return Solution(status="feasible", termination="echo", x=program.cost, objective=0.0)


@hookimpl
def coral_solvers():
    return [Component(name="echo", summary="answers at once", options=EchoOptions, build=lambda _: Echo())]
'''
SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "highs": ("highs", {}),
    "highs, presolve on": ("highs", {"presolve": "on"}),
    "mip": ("mip", {}),
    "pyomo appsi_highs": ("pyomo", {"solver": "appsi_highs"}),
    "pyomo cbc": ("pyomo", {"solver": "cbc"}),
    "pyomo glpk": ("pyomo", {"solver": "glpk"}),
}


def wide(columns: int, seed: int = 0, *, types: int = 20, regions: int = 3, models: int = 12) -> Program:
    """Templates of four nodes each in `regions` that hold `types` of nodes; demand of `models` is covered."""
    draw = np.random.default_rng(seed)
    build = ProgramBuilder()
    supply = build.rows(types * regions, upper=draw.integers(20, 400, types * regions).astype(float))
    demand = build.rows(models, lower=1.0)
    nodes = np.array([draw.choice(types, 4, replace=False) for _ in range(min(columns, 20_000))])
    nodes = nodes[draw.integers(0, len(nodes), columns)]
    used = draw.integers(1, 3, (columns, 4))
    cost = (draw.uniform(0.5, 12, types)[nodes] * used).sum(axis=1)
    region, model = draw.integers(0, regions, columns), draw.integers(0, models, columns)
    throughput = cost * draw.uniform(0.5, 1.0, columns) / (300 * draw.uniform(0.5, 2, models)[model])
    x = build.variables(columns, cost=cost, integer=True)
    build.entries(
        (nodes + types * region[:, None]).ravel() + supply[0], np.repeat(x, 4), used.ravel().astype(float)
    )
    build.entries(demand[model], x, throughput)
    return build.build()


def relaxed(program: Program) -> Program:
    from msgspec.structs import replace

    return replace(program, integer=np.zeros(program.columns, dtype=np.bool_))


def timed(solver: Solver, program: Program, times: int) -> float:
    """Median seconds of a solve."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        solver.solve(program, work_limit=None, time_limit_s=60.0, gap=1e-6)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def overhead(columns: list[int], times: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        echo_file = Path(folder) / "echo.py"
        echo_file.write_text(ECHO)
        registry = load_plugins([echo_file])
        began = time.perf_counter()
        solver = _supervised(registry, "highs", {})
        assert solver.features.integer
        started = time.perf_counter() - began
        direct = registry.build("solver", "highs")
        small = random_covering(1)
        yield {
            "part": "overhead",
            "what": "small program, HiGHS",
            "columns": small.columns,
            "direct_ms": 1e3 * timed(direct, small, times),
            "supervised_ms": 1e3 * timed(solver, small, times),
            "start_ms": 1e3 * started,
        }
        solver.close()
        echo = _supervised(registry, "echo", {})
        assert echo.features.integer
        for n in columns:
            program = wide(n)
            yield {
                "part": "overhead",
                "what": "transfer alone",
                "columns": n,
                "entries": len(program.data),
                "supervised_ms": 1e3 * timed(echo, program, 5),
            }
        echo.close()


def solves(columns: list[int], time_limit_s: float, only: str) -> Iterator[dict[str, Any]]:
    registry = load_plugins()
    for n in columns:
        whole = wide(n)
        for kind, program in (("linear", relaxed(whole)), ("integer", whole)):
            for title, (name, options) in SOLVERS.items():
                if only and title not in only.split(","):
                    continue
                yield {"part": "solve", "kind": kind, "columns": n, "solver": title} | solve_once(
                    registry, name, options, program, time_limit_s
                )


def solve_once(
    registry: Registry, name: str, options: dict[str, Any], program: Program, time_limit_s: float
) -> dict[str, Any]:
    """Supervised: what overruns its time limit by more than the margin is killed."""
    try:
        solver = _supervised(registry, name, options)
        assert solver.features.integer
    except CoralError as error:
        return {"skipped": error.message.splitlines()[0]}
    began = time.perf_counter()
    try:
        found = solver.solve(program, work_limit=None, time_limit_s=time_limit_s, gap=1e-4)
        said: dict[str, Any] = {
            "status": found.status,
            "objective": found.objective,
            "bound": found.bound,
            "termination": found.termination,
        }
    except CoralError as error:
        said = {"status": "error", "termination": error.message.splitlines()[0]}
    finally:
        seconds = time.perf_counter() - began
        solver.close()
    return {"wall_s": round(seconds, 3), "time_limit_s": time_limit_s, **said}


def _supervised(registry: Registry, name: str, options: dict[str, Any]) -> SupervisedSolver:
    solver = supervised_solver(registry, name, options, time_limit_s=60.0)
    assert isinstance(solver, SupervisedSolver)
    return solver


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--transfer", default="300000,850000", help="columns whose transfer is timed")
    parser.add_argument("--columns", default="5000,100000", help="columns that each solver is given")
    parser.add_argument("--only", default="", help="solvers by name, commas between")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of one solve")
    parser.add_argument("--times", type=int, default=200, help="solves of the small program")
    arguments = parser.parse_args(argv)
    transfer = [int(n) for n in arguments.transfer.split(",") if n]
    columns = [int(n) for n in arguments.columns.split(",") if n]
    lines = [overhead(transfer, arguments.times), solves(columns, arguments.time_limit, arguments.only)]
    for line in (one for part in lines for one in part):
        said = json.dumps(line) if arguments.json else "  ".join(f"{k}={v}" for k, v in line.items())
        print(said, flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
