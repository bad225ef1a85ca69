"""Solver backends: take a neutral Program, return a Solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component
from coral.types.program import Floats, NonlinearProgram, Program, Solution, SolverFeatures


class Solver(Protocol):
    """Solves one program at a time; holds no state between calls."""

    @property
    def features(self) -> SolverFeatures: ...

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
    ) -> Solution:
        """Minimise `program`.

        `time_limit_s` is wall seconds; `work_limit` is the solver's own deterministic measure (nodes
        or iterations). A limit with an incumbent is a normal result (`status="feasible"`). `gap` is
        relative. `start` (n floats) may be used as a first incumbent and may be ignored.
        Raises SolverError where the solver itself fails; never for infeasible or unbounded programs.
        """
        ...


@runtime_checkable
class NonlinearSolver(Protocol):
    """What a solver backend offers besides, where it minimises smooth functions under smooth constraints."""

    def minimise(self, program: NonlinearProgram, *, time_limit_s: float | None) -> Solution:
        """A local minimum from the program's start: status `optimal`, or `feasible` where a limit was met
        at a point that satisfies the constraints. `row_duals` may be None. Raises SolverError where the
        solver itself fails, also where a function gives what is not finite."""
        ...


OnIncumbent = Callable[[Floats, float], None]
"""Told x (n floats, the caller's to keep) and the best lower bound so far (-inf where there is none)."""


class IncumbentSolver(Solver, Protocol):
    """A solver that tells of better solutions as it finds them: what is left where it must be killed.

    Its features say `incumbents`; others are never given `on_incumbent`.
    """

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
        """As `Solver.solve`. `on_incumbent` is called in the solving thread for every improving solution
        of an integer program; what it raises may be lost."""
        ...


class SolverHooks:
    @hookspec
    def coral_solvers(self) -> list[Component]:  # type: ignore[empty-body]
        """Solver backends this plugin offers.

        Called once, when plugins are loaded. Each component's `build(options)` returns a `Solver`.
        A name that two plugins offer is an error.
        """
