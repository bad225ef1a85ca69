"""A neutral Program to whatever solver Pyomo knows, and a Solution from its results."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from coral.errors import SolverError
from coral.hookspecs.objective_scale import objective_scale
from coral.types.program import Floats, Program, Solution, SolverFeatures, Status
from coral_solver_pyomo.dialects import dialect
from coral_solver_pyomo.factory import pyomo_solver, quiet
from coral_solver_pyomo.model import by_rows, never, pyomo_model

if TYPE_CHECKING:
    from coral_solver_pyomo.options import PyomoOptions, Value

AT_GAP = "withinTheGap"
STATUS: dict[str, Status] = {
    AT_GAP: "optimal",
    "optimal": "optimal",
    "globallyOptimal": "optimal",
    "infeasible": "infeasible",
    "unbounded": "unbounded",
    "infeasibleOrUnbounded": "no_solution",
    "maxTimeLimit": "no_solution",
    "maxIterations": "no_solution",
    "maxEvaluations": "no_solution",
    "minFunctionValue": "no_solution",
    "feasible": "no_solution",
    "userInterrupt": "no_solution",
    "resourceInterrupt": "no_solution",
    "other": "no_solution",
    "unknown": "no_solution",
    "noSolution": "no_solution",
}
"""Pyomo's termination condition by ours; `no_solution` becomes `feasible` where there is an incumbent. What
is not listed is a failure of the solver."""


class PyomoSolver:
    """Builds a model, hands it over, reads the results; keeps no state between solves."""

    def __init__(self, options: PyomoOptions) -> None:
        self._options = options
        self._dialect = dialect(options.solver, options.limit_options)
        self._solver = pyomo_solver(options)
        self.features = SolverFeatures(
            integer=True,
            duals=self._dialect.duals,
            start=self._dialect.start,
            deterministic_work_limit=self._dialect.work,
        )

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
    ) -> Solution:
        """See `coral.hookspecs.solver.Solver`. Work is nodes of an integer program, else iterations; it is
        not told by Pyomo, and is given as 0."""
        began = time.monotonic()
        if not (np.isfinite(program.cost).all() and np.isfinite(program.data).all()):
            raise SolverError("a program for Pyomo holds a cost or an entry that is not a finite number")
        if never(program, by_rows(program)):
            return Solution(status="infeasible", termination="a row without variables", bound=math.inf)
        if not program.columns:
            return Solution(
                status="optimal", termination="no variables", x=np.zeros(0), objective=0.0, bound=0.0
            )
        scale = objective_scale(program.cost)
        scaled = replace(program, cost=program.cost * scale)
        model, results = self._run(scaled, work_limit, time_limit_s, gap, start)
        condition = str(results.solver.termination_condition)
        if condition in self._dialect.unsettled and not len(results.solution):
            left_s = None if time_limit_s is None else max(0.0, time_limit_s - (time.monotonic() - began))
            any_x = replace(program, cost=np.zeros(program.columns))
            _, feasibility = self._run(any_x, work_limit, left_s, gap, None)
            results.solver.termination_condition = _settled(condition, feasibility)
        seconds = time.monotonic() - began
        if condition == "feasible" and self._at_gap(seconds, time_limit_s):
            results.solver.termination_condition = AT_GAP
        return self._solution(program, model, results, scale, gap, seconds)

    def _at_gap(self, seconds: float, time_limit_s: float | None) -> bool:
        """Whether nothing but the gap can have ended a solve."""
        early = time_limit_s is None or seconds < 0.9 * time_limit_s
        return self._dialect.feasible_at_gap and early and not self._options.solver_options

    def _run(
        self,
        program: Program,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None,
    ) -> tuple[Any, Any]:
        """The model and Pyomo's results."""
        mixed = bool(program.integer.any())
        start = start if mixed and self._dialect.start else None
        model = pyomo_model(program, start, duals=self._dialect.duals and not mixed)
        arguments = self._arguments(mixed, work_limit, time_limit_s, gap)
        if start is not None:
            arguments["warmstart"] = True
        try:
            with quiet():
                results = self._solver.solve(model, load_solutions=False, tee=self._options.log, **arguments)
        except Exception as error:  # each of Pyomo's interfaces raises its own
            raise SolverError(
                f"Pyomo's solver {self._options.solver!r} failed: {type(error).__name__}: {error}",
                mend="solve once more with `solver: {use: pyomo, log: true}` to see its log",
            ) from error
        return model, results

    def _arguments(
        self, mixed: bool, work_limit: int | None, time_limit_s: float | None, gap: float
    ) -> dict[str, Any]:
        known = self._dialect
        options: dict[str, Value] = {**known.always, **self._options.solver_options}
        arguments: dict[str, Any] = {"options": options}
        if mixed:
            options[self._named("gap", known.gap)] = gap
        if work_limit is not None:
            name = known.nodes if mixed else known.iterations
            options[self._named("nodes" if mixed else "iterations", name)] = work_limit
        if time_limit_s is not None:
            seconds = max(1.0, math.ceil(time_limit_s)) if known.whole_seconds else max(1e-3, time_limit_s)
            limit = int(seconds) if known.whole_seconds else seconds
            if known.time is None and known.timelimit:
                arguments["timelimit"] = limit
            else:
                options[self._named("time", known.time)] = limit
        return arguments

    def _named(self, what: str, name: str | None) -> str:
        if name is None:
            raise SolverError(
                f"how Pyomo's solver {self._options.solver!r} is told a limit of {what} is not known",
                mend=f"name its option: `solver: {{use: pyomo, limit_options: {{{what}: ...}}}}`",
            )
        return name

    def _solution(
        self, program: Program, model: Any, results: Any, scale: float, gap: float, seconds: float
    ) -> Solution:
        condition = str(results.solver.termination_condition)
        if condition not in STATUS:
            raise SolverError(
                f"Pyomo's solver {self._options.solver!r} failed: {condition}: {results.solver.message}"
            )
        status = STATUS[condition]
        x = None
        if len(results.solution) and status in ("optimal", "no_solution"):
            with quiet():
                model.solutions.load_from(results, allow_consistent_values_for_fixed_vars=True)
            x = _values(program, model)
            if status == "no_solution":
                status = "feasible"
        elif status == "optimal":
            raise SolverError(f"Pyomo's solver {self._options.solver!r} says optimal and gives no solution")
        objective = float(program.cost @ x) if x is not None else math.nan
        return Solution(
            status=status,
            termination=condition,
            x=x,
            objective=objective,
            bound=self._bound(program, results, status, scale, gap, objective),
            row_duals=_duals(program, model, scale) if status == "optimal" else None,
            seconds=seconds,
        )

    def _bound(
        self, program: Program, results: Any, status: Status, scale: float, gap: float, objective: float
    ) -> float:
        """What the solver proved, as far as Pyomo passes it on."""
        if status == "infeasible":
            return math.inf
        if not program.integer.any():
            return objective if status == "optimal" else -math.inf
        if self._dialect.feasible_at_gap:
            if status != "optimal":
                return -math.inf
            at_gap = str(results.solver.termination_condition) == AT_GAP
            return objective - gap * abs(objective) if at_gap else objective
        told = results.problem.lower_bound
        bound = float(told) / scale if isinstance(told, int | float) else -math.inf
        if not math.isfinite(bound):
            return -math.inf
        return bound if math.isnan(objective) else min(bound, objective)


def _settled(condition: str, feasibility: Any) -> str:
    """Of a program that is infeasible or unbounded, by how the same program without an objective ended."""
    ended = str(feasibility.solver.termination_condition)
    if len(feasibility.solution):
        return "unbounded"
    stopped = STATUS.get(ended, "error") == "no_solution" and ended != condition
    return "unknown" if stopped else "infeasible"


def _values(program: Program, model: Any) -> Floats:
    """A variable that is in no row and has no cost is told of by nobody: it is as near to 0 as it may be."""
    near_zero = np.clip(0.0, program.lower, program.upper).tolist()
    values = (model.x[j].value for j in range(program.columns))
    return np.array([near if v is None else v for v, near in zip(values, near_zero, strict=True)])


def _duals(program: Program, model: Any, scale: float) -> Floats | None:
    if not hasattr(model, "dual"):
        return None
    duals = np.zeros(program.rows)
    for i in model.rows:
        duals[i] = model.dual.get(model.rows[i], 0.0)
    return duals / scale


def build(options: PyomoOptions) -> PyomoSolver:
    return PyomoSolver(options)
