"""A one-file plugin: a solver that misbehaves in the way its option `how` says."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import numpy as np

from coral.errors import SolverError
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import Options
from coral.hookspecs.solver import OnIncumbent
from coral.types.program import Floats, Program, Solution, SolverFeatures


class MisbehavingOptions(Options):
    how: str = "behave"
    """`behave` answers the upper bounds of the variables."""
    only_columns: int = 0
    """Misbehave only where the program has so many variables; 0: always."""
    pids: str = ""
    """File that takes the id of a process that it starts."""
    may_abort: bool = False


def hang() -> None:
    """Inside C, the interpreter's lock held: no other thread and no handler of Python runs again."""
    sleep = ctypes.PyDLL(None).usleep
    while True:
        sleep(999_999)


class Misbehaving:
    def __init__(self, options: MisbehavingOptions) -> None:
        self._options = options
        self.features = SolverFeatures(
            integer=True,
            duals=False,
            start=False,
            deterministic_work_limit=True,
            may_abort_process=options.may_abort,
            incumbents=True,
        )

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
        on_incumbent: OnIncumbent | None = None,
    ) -> Solution:
        only = self._options.only_columns
        how = "behave" if only and program.columns != only else self._options.how
        if how.endswith("after incumbents") and on_incumbent is not None:
            on_incumbent(program.upper + 1.0, -np.inf)
            on_incumbent(program.upper, -7.0)
        self._misbehave(how)
        x = np.zeros(program.columns) if how == "lie" else program.upper.copy()
        objective = -1.0 if how == "lie" else float(program.cost @ x)
        return Solution(status="optimal", termination="done", x=x, objective=objective, bound=objective)

    def _misbehave(self, how: str) -> None:
        if how.startswith("abort"):
            os.abort()
        elif how.startswith("hang"):
            hang()
        elif how == "segfault":
            ctypes.string_at(0)
        elif how == "exit":
            os._exit(3)
        elif how == "leak":
            held = []
            while True:
                held.append(np.ones(1 << 20))
        elif how == "raise":
            raise ValueError("not my day")
        elif how == "refuse":
            raise SolverError("the licence has run out", mend="buy another")
        elif how == "start a process and hang":
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(self._options.pids, "w") as out:
                out.write(f"{sleeper.pid}\n")
            hang()
        elif how == "sleep":
            time.sleep(0.5)


def build(options: MisbehavingOptions) -> Misbehaving:
    if options.how == "not built":
        raise SolverError("this solver has no licence", mend="buy one")
    if options.how == "abort when built":
        os.abort()
    return Misbehaving(options)


@hookimpl
def coral_solvers() -> list[Component]:
    return [Component(name="misbehaving", summary="for tests", options=MisbehavingOptions, build=build)]
