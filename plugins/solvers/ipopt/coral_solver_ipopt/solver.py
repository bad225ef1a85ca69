"""Continuous programs, linear and smooth, into Ipopt and Solutions out of it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from coral.errors import PluginError, SolverError
from coral.hookspecs.objective_scale import objective_scale
from coral.types.program import Floats, Ints, NonlinearProgram, Program, Solution, SolverFeatures
from coral_solver_ipopt.linear import OPTIONS, LinearFunctions
from coral_solver_ipopt.nonlinear import NonlinearFunctions
from coral_solver_ipopt.run import (
    ACCEPTABLE,
    DIVERGES,
    FEASIBLE_POINT,
    INFEASIBLE,
    LIMITS,
    NOT_A_NUMBER,
    SOLVED,
    Ended,
    run,
)

if TYPE_CHECKING:
    from coral_solver_ipopt.options import IpoptOptions

FEASIBILITY = 1e-6
DEBIAN = ("coinor-libipopt-dev", "libblas-dev", "liblapack-dev", "gfortran", "pkg-config")
"""What cyipopt is built with: it has no wheel."""


class IpoptSolver:
    """An interior-point method: no integers, and answers that are near a vertex and not on one."""

    features = SolverFeatures(integer=False, duals=True, start=True, deterministic_work_limit=True)

    def __init__(self, options: IpoptOptions) -> None:
        self._options = options

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
    ) -> Solution:
        """See `coral.hookspecs.solver.Solver`. Work is iterations; `gap` is of integer programs and not
        used, `tolerance` is Ipopt's. Raises SolverError for an integer program."""
        began = time.monotonic()
        if program.integer.any():
            raise SolverError(
                "Ipopt solves continuous programs, and this one has integer variables",
                mend="choose another solver for plans: `solver: {use: highs}`",
            )
        if not (np.isfinite(program.cost).all() and np.isfinite(program.data).all()):
            raise SolverError("a program for Ipopt holds a cost or an entry that is not a finite number")
        entries = np.bincount(program.indices, minlength=program.rows)
        bounded = np.isfinite(program.row_lower) | np.isfinite(program.row_upper)
        if ((entries == 0) & ((program.row_lower > 0) | (program.row_upper < 0))).any():
            return Solution(status="infeasible", termination="a row without variables", bound=math.inf)
        if not program.columns:
            return Solution(
                status="optimal", termination="no variables", x=np.zeros(0), objective=0.0, bound=0.0
            )
        rows = np.flatnonzero(bounded & (entries > 0))
        scale = objective_scale(program.cost)
        begin = np.zeros(program.columns) if start is None else start
        ended = run(
            LinearFunctions(program, rows, scale),
            self._options,
            start=np.clip(begin, program.lower, program.upper),
            lower=program.lower,
            upper=program.upper,
            row_lower=program.row_lower[rows],
            row_upper=program.row_upper[rows],
            work_limit=work_limit,
            time_limit_s=time_limit_s,
            more=OPTIONS,
        )
        return _linear_solution(program, ended, rows, scale, time.monotonic() - began)

    def minimise(self, program: NonlinearProgram, *, time_limit_s: float | None) -> Solution:
        """See `coral.hookspecs.solver.NonlinearSolver`."""
        began = time.monotonic()
        functions = NonlinearFunctions(program)
        ended = run(
            functions,
            self._options,
            start=np.clip(program.start, program.lower, program.upper),
            lower=program.lower,
            upper=program.upper,
            row_lower=program.row_lower,
            row_upper=program.row_upper,
            work_limit=None,
            time_limit_s=time_limit_s,
            more={"hessian_approximation": "limited-memory"},
        )
        seconds = time.monotonic() - began
        if ended.code == INFEASIBLE:
            return Solution(status="infeasible", termination=ended.message, seconds=seconds)
        if ended.code == DIVERGES:
            return Solution(status="unbounded", termination=ended.message, seconds=seconds)
        x = np.clip(ended.x, program.lower, program.upper)
        holds = _violation(functions.constraints(x), program) <= FEASIBILITY
        if ended.code == NOT_A_NUMBER or (not holds and ended.code not in LIMITS):
            raise SolverError(f"Ipopt failed: {ended.message}")
        optimal = ended.code in (SOLVED, ACCEPTABLE)
        return Solution(
            status=("optimal" if optimal else "feasible") if holds else "no_solution",
            termination=LIMITS.get(ended.code, ended.message),
            x=x if holds else None,
            objective=functions.objective(x) if holds else math.nan,
            row_duals=-ended.multipliers if optimal else None,
            work=ended.iterations,
            seconds=seconds,
        )


def _linear_solution(program: Program, ended: Ended, rows: Ints, scale: float, seconds: float) -> Solution:
    if ended.code == INFEASIBLE:
        return Solution(status="infeasible", termination=ended.message, bound=math.inf, seconds=seconds)
    if ended.code == DIVERGES:
        return Solution(status="unbounded", termination=ended.message, seconds=seconds)
    x = np.clip(ended.x, program.lower, program.upper)
    optimal = ended.code in (SOLVED, FEASIBLE_POINT)
    holds = program.violation(x) <= FEASIBILITY
    if not optimal and ended.code not in LIMITS and ended.code != ACCEPTABLE:
        raise SolverError(f"Ipopt failed: {ended.message}")
    duals = None
    if optimal and holds:
        duals = np.zeros(program.rows)
        duals[rows] = -ended.multipliers / scale
    objective = float(program.cost @ x) if holds else math.nan
    return Solution(
        status=("optimal" if optimal else "feasible") if holds else "no_solution",
        termination=LIMITS.get(ended.code, ended.message),
        x=x if holds else None,
        objective=objective,
        bound=objective if optimal and holds else -math.inf,
        row_duals=duals,
        work=ended.iterations,
        seconds=seconds,
    )


def _violation(rows: Floats, program: NonlinearProgram) -> float:
    excess = np.r_[program.row_lower - rows, rows - program.row_upper]
    return float(excess.max(initial=0.0)) if np.isfinite(rows).all() else math.inf


def build(options: IpoptOptions) -> IpoptSolver:
    """Raises PluginError where cyipopt is not installed or its library cannot be loaded."""
    try:
        import cyipopt  # noqa: F401
    except ImportError as error:
        raise PluginError(
            f"solver 'ipopt' cannot load cyipopt: {error}",
            mend=f"apt-get install {' '.join(DEBIAN)}, then pip install cyipopt",
        ) from error
    return IpoptSolver(options)
