"""A neutral Program into HiGHS and a Solution out of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from coral.errors import SolverError
from coral.hookspecs.objective_scale import objective_scale
from coral.hookspecs.solver import OnIncumbent
from coral.types.program import Floats, Program, Solution, SolverFeatures, Status
from coral_solver_highs.banner import silenced_stdout

if TYPE_CHECKING:
    from coral_solver_highs.options import HighsOptions

STATUS: dict[str, Status] = {
    "kOptimal": "optimal",
    "kModelEmpty": "optimal",
    "kInfeasible": "infeasible",
    "kUnbounded": "unbounded",
    "kUnboundedOrInfeasible": "no_solution",
    "kObjectiveBound": "no_solution",
    "kObjectiveTarget": "no_solution",
    "kTimeLimit": "no_solution",
    "kIterationLimit": "no_solution",
    "kSolutionLimit": "no_solution",
    "kInterrupt": "no_solution",
    "kHighsInterrupt": "no_solution",
    "kMemoryLimit": "no_solution",
}
"""HiGHS' model status by ours; `no_solution` becomes `feasible` where there is an incumbent. What is not
listed is a failure of HiGHS itself."""

LARGEST_INT = 2**31 - 1


class HighsSolver:
    features = SolverFeatures(
        integer=True, duals=True, start=True, deterministic_work_limit=True, incumbents=True
    )

    def __init__(self, options: HighsOptions) -> None:
        self._options = options

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
        """See `coral.hookspecs.solver.IncumbentSolver`. Work is nodes of an integer program, else
        simplex iterations."""
        import highspy

        if not (np.isfinite(program.cost).all() and np.isfinite(program.data).all()):
            raise SolverError("a program for HiGHS holds a cost or an entry that is not a finite number")
        mixed = bool(program.integer.any())
        scale = objective_scale(program.cost)
        if scale != 1.0:
            program = replace(program, cost=program.cost * scale)
        constructor: Any = highspy.Highs  # highspy is annotated in part
        with silenced_stdout():
            highs = constructor()
        for name, value in self._settings(mixed, work_limit, time_limit_s, gap).items():
            _checked(highs.setOptionValue(name, value), f"option {name}={value!r}", highspy)
        _checked(_pass(highs, program, mixed), "the program", highspy)
        if start is not None and mixed:
            known = highspy.HighsSolution()
            known.col_value = list(map(float, start))
            _checked(highs.setSolution(known), "the start", highspy)
        if on_incumbent is not None and mixed:
            highs.cbMipImprovingSolution += _telling(on_incumbent, scale)
        return self._run(highs, highspy, program, mixed, scale)

    def _settings(
        self, mixed: bool, work_limit: int | None, time_limit_s: float | None, gap: float
    ) -> dict[str, bool | int | float | str]:
        settings: dict[str, bool | int | float | str] = {
            "output_flag": self._options.log,
            "threads": self._options.threads,
            "random_seed": self._options.random_seed,
            "presolve": self._options.presolve,
            "mip_rel_gap": gap,
        }
        if time_limit_s is not None:
            settings["time_limit"] = max(0.0, time_limit_s)
        if work_limit is not None:
            limit = min(max(0, work_limit), LARGEST_INT)
            settings["mip_max_nodes" if mixed else "simplex_iteration_limit"] = limit
        return settings

    def _run(self, highs: Any, highspy: Any, program: Program, mixed: bool, scale: float) -> Solution:
        ran = highs.run()
        model_status = highs.getModelStatus()
        if model_status.name == "kUnboundedOrInfeasible":  # presolve stopped before it could tell which
            highs.setOptionValue("presolve", "off")
            ran = highs.run()
            model_status = highs.getModelStatus()
        if ran == highspy.HighsStatus.kError or model_status.name not in STATUS:
            raise SolverError(
                f"HiGHS failed: {highs.modelStatusToString(model_status)}",
                mend="solve once more with `solver: {use: highs, log: true}` to see its log",
            )
        info = highs.getInfo()
        status = STATUS[model_status.name]
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if status == "no_solution" and feasible:
            status = "feasible"
        if model_status.name == "kModelEmpty":
            x: Floats | None = np.zeros(program.columns)
        else:
            x = None
            if status in ("optimal", "feasible"):
                x = np.array(highs.getSolution().col_value, dtype=np.float64)
        duals = None
        if not mixed and status == "optimal":
            duals = np.array(highs.getSolution().row_dual, dtype=np.float64) / scale
        objective = float(info.objective_function_value) / scale if x is not None else math.nan
        return Solution(
            status=status,
            termination=highs.modelStatusToString(model_status),
            x=x,
            objective=objective,
            bound=_bound(info, status, mixed, objective, scale),
            row_duals=duals,
            work=int(max(0, info.mip_node_count if mixed else info.simplex_iteration_count)),
            seconds=float(highs.getRunTime()),
        )


def _telling(on_incumbent: OnIncumbent, scale: float) -> Callable[[Any], None]:
    def tell(event: Any) -> None:
        found = event.data_out
        on_incumbent(np.array(found.mip_solution, dtype=np.float64), float(found.mip_dual_bound) / scale)

    return tell


def _pass(highs: Any, program: Program, mixed: bool) -> Any:
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = program.columns, program.rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = program.indptr.astype(np.int32)
    lp.a_matrix_.index_ = program.indices.astype(np.int32)
    lp.a_matrix_.value_ = program.data
    if mixed:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(integral)] for integral in program.integer]
    return highs.passModel(lp)


def _bound(info: Any, status: Status, mixed: bool, objective: float, scale: float) -> float:
    if status == "infeasible":
        return math.inf
    if mixed:
        bound = float(info.mip_dual_bound) / scale
        return bound if math.isfinite(bound) else -math.inf
    return objective if status == "optimal" else -math.inf


def _checked(status: Any, what: str, highspy: Any) -> None:
    if status == highspy.HighsStatus.kError:
        raise SolverError(
            f"HiGHS refuses {what}", mend="look for values that are not numbers, or another HiGHS release"
        )


def build(options: HighsOptions) -> HighsSolver:
    return HighsSolver(options)
