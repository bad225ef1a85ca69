"""No answer of a solver is believed: cost and feasibility are computed again from the rounded x.

HiGHS 1.16 given a start was seen to return "optimal" with objective = bound = 455.68 for an x that costs
488.31, CBC a wrong optimum for small objectives. An answer that does not hold is solved again, cold; a
second one that does not hold is an error. So is an "optimal" one, given a start, whose own bound is further
off than the gap asked for; without a start it is taken as feasible. A bound is claimed only if it does not
exceed the true cost.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.budget import Budget
from coral.errors import SolverError
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program, Solution, Status

FEASIBILITY = 1e-6
"""Largest violation of a row or bound that is taken for rounding: rows are scaled to about 1, hosting
rows are whole numbers. Also the relative difference of cost that is."""

EXACT = 1e-9
"""Largest violation that is float64's own and no solver's."""


class Checked(Struct, frozen=True, kw_only=True, eq=False):
    """An answer that holds. `x` is rounded where integral; `cost` is c·x; `bound` <= optimum, or -inf."""

    status: Status
    x: Floats | None = None
    cost: float = math.inf
    bound: float = -math.inf
    resolved_cold: bool = False
    failure: str = ""
    """Of the solver, after it had found this."""


def solve_checked(
    program: Program,
    solver: Solver,
    budget: Budget,
    start: Floats | None = None,
) -> Checked:
    """Solve within what is left of the budget, to its gap. Raises SolverError where the solver fails or
    twice gives an answer that does not hold."""
    faults: list[str] = []
    witness = _witness(program, start)
    for attempt_start in (start, None):
        solution = solver.solve(
            program,
            work_limit=budget.work_left,
            time_limit_s=budget.time_left_s,
            gap=budget.gap,
            start=attempt_start if solver.features.start else None,
        )
        budget.spend(solution)
        if solution.status == "error":
            raise SolverError(f"the solver failed: {solution.termination}")
        if solution.status == "unbounded":
            faults.append("it calls a program unbounded whose costs and variables are not negative")
        elif refuted := _refuted(program, solution, witness):
            faults.append(refuted)
        elif solution.status in ("infeasible", "no_solution"):
            return _at_least(
                Checked(status=solution.status, bound=_bound_without_x(solution), resolved_cold=bool(faults)),
                witness,
            )
        else:
            x = rounded(program, solution)
            found = fault(program, solution, x)
            if found is None and x is not None:
                cost = float(program.cost @ x)
                wide = solution.status == "optimal" and _wide(solution.bound, cost, budget.gap)
                if wide and attempt_start is not None and solver.features.start:
                    faults.append(f"it calls {cost:.6g} optimal with a bound of {solution.bound:.6g}")
                    continue
                answer = Checked(
                    status="feasible" if wide else solution.status,
                    x=x,
                    cost=cost,
                    bound=claimed(solution.bound, cost),
                    resolved_cold=bool(faults),
                    failure=solution.failure,
                )
                return _at_least(answer, witness)
            faults.append(found or "it gives no solution")
    raise SolverError(
        "the solver's answer does not hold, nor did it when asked again without a start: "
        + "; ".join(faults),
        mend="choose another solver (`solver: {use: ...}`) or another release of this one",
    )


def _witness(program: Program, start: Floats | None) -> Checked | None:
    """The start, where it is a solution."""
    if start is None or len(start) != program.columns or program.violation(start) > FEASIBILITY:
        return None
    return Checked(status="feasible", x=start, cost=float(program.cost @ start))


def _refuted(program: Program, solution: Solution, witness: Checked | None) -> str | None:
    """What a known solution says against an answer, or None. One that holds by tolerance alone may be
    cheaper than the program allows, and refutes nothing."""
    if witness is None or witness.x is None or program.violation(witness.x) > EXACT:
        return None
    if solution.status == "infeasible":
        return "it calls a program infeasible that the start satisfies"
    if math.isfinite(solution.bound) and claimed(solution.bound, witness.cost) == -math.inf:
        return f"it states a bound of {solution.bound:.6g} where the start costs {witness.cost:.6g}"
    return None


def _at_least(answer: Checked, witness: Checked | None) -> Checked:
    """The answer, or the witness with the answer's bound where that is cheaper."""
    if witness is None or witness.cost >= answer.cost:
        return answer
    bound = claimed(answer.bound, witness.cost)
    status = witness.status if answer.x is None else answer.status
    return replace(
        witness,
        status=status,
        bound=bound,
        resolved_cold=answer.resolved_cold,
        failure=answer.failure,
    )


def rounded(program: Program, solution: Solution) -> Floats | None:
    """x with integral variables rounded and all within their bounds by rounding error."""
    if solution.x is None or np.shape(solution.x) != (program.columns,) or not np.isfinite(solution.x).all():
        return None
    x = np.array(solution.x, dtype=np.float64)
    x[program.integer] = np.round(x[program.integer])
    inside = np.clip(x, program.lower, program.upper)
    return np.where(np.abs(inside - x) <= FEASIBILITY, inside, x)


def fault(program: Program, solution: Solution, x: Floats | None) -> str | None:
    """What is wrong with an answer that has a solution, or None."""
    if x is None:
        return "its solution is missing, of the wrong size or not finite"
    violation = program.violation(x)
    if violation > FEASIBILITY:
        return f"its solution violates the program by {violation:.3g}"
    cost = float(program.cost @ x)
    if not math.isclose(cost, solution.objective, rel_tol=1e-5, abs_tol=1e-5):
        return f"it states an objective of {solution.objective:.6g} where its solution costs {cost:.6g}"
    return None


def _wide(bound: float, cost: float, gap: float) -> bool:
    """Whether a bound leaves clearly more than the gap asked for, beside solvers' own tolerances."""
    return math.isfinite(bound) and cost - bound > 2 * max(gap, 1e-6) * max(1.0, abs(cost)) + 1e-5


def claimed(bound: float, cost: float) -> float:
    """The bound, at most the cost; nothing where it contradicts the cost."""
    slack = FEASIBILITY * max(1.0, abs(cost))
    return min(bound, cost) if math.isfinite(bound) and bound <= cost + slack else -math.inf


def _bound_without_x(solution: Solution) -> float:
    if solution.status == "infeasible":
        return math.inf
    return solution.bound if math.isfinite(solution.bound) else -math.inf
