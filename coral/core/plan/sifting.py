"""Large programs: solve over the columns of small reduced cost first, and prove that the rest may wait.

z is a bound from the LP's row prices (recomputed here, see `bound`). A solution that uses a column left out,
an integer one at 0 with reduced cost > δ, costs at least z + δ. So over the columns within δ::

    bound = max(previous, min(bound of the restricted program, z + δ))

and δ grows (0.5 % of z, then threefold) until cost and bound meet. Column generation would find the same
LP without ever holding all columns; it replaces `_prices` and nothing else.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from coral.core.plan import bound as bounds
from coral.core.plan.budget import Budget
from coral.core.plan.check import Checked, claimed, solve_checked
from coral.errors import SolverError
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program

FIRST = 0.005
GROWTH = 3.0


class Sifted(Struct, frozen=True, kw_only=True, eq=False):
    """`ours`: whether the bound is the one proved here rather than the solver's own."""

    answer: Checked
    columns: int
    ours: bool


def better(first: Sifted, second: Sifted) -> Sifted:
    """Of two answers to one program the cheaper one, with the higher bound: either's bound holds for both."""
    cheaper = second if second.answer.cost <= first.answer.cost else first
    tighter = second if second.answer.bound > first.answer.bound else first
    bound = claimed(tighter.answer.bound, cheaper.answer.cost)
    return replace(tighter, answer=replace(cheaper.answer, bound=bound))


def minimise(
    program: Program, solver: Solver, budget: Budget, start: Floats | None = None, *, sift_above: int
) -> Sifted:
    """The program as a whole up to `sift_above` columns, sifted above."""
    if program.columns > sift_above:
        return sift(program, solver, budget, start)
    answer = solve_checked(program, solver, budget, start)
    return Sifted(answer=answer, columns=program.columns, ours=False)


def sift(program: Program, solver: Solver, budget: Budget, start: Floats | None = None) -> Sifted:
    """As `solve_checked`, for programs whose columns are many and whose rows are few."""
    prices = _prices(program, solver, budget)
    if prices is None:
        answer = solve_checked(program, solver, budget, start)
        return Sifted(answer=answer, columns=program.columns, ours=False)
    reduced = bounds.reduced_costs(program, prices)
    z = bounds.lagrangian(program, prices, reduced)
    optional = program.integer & (program.lower == 0)
    delta = max(FIRST * abs(z), 1e-9)
    best = Checked(status="no_solution")
    incumbent = start if start is not None and program.violation(start) <= 1e-6 else None
    proven = -math.inf
    columns = 0
    while True:
        keep = ~optional | (reduced <= delta)
        everything = bool(keep.all())
        columns = int(keep.sum())
        answer = _restricted(program, keep, solver, budget, incumbent, final=everything)
        if answer.cost < best.cost and answer.x is not None:
            best, incumbent = answer, answer.x
        reach = math.inf if everything else z + delta
        proven = max(proven, z, min(answer.bound, reach))
        if answer.status == "infeasible" and everything:
            return Sifted(answer=replace(answer, bound=math.inf), columns=columns, ours=False)
        closed = best.x is not None and best.cost - proven <= budget.gap * abs(best.cost) + 1e-9
        if closed or everything or budget.exhausted:
            break
        delta = _next(delta, best.cost, z, budget.gap)
    bound = claimed(proven, best.cost) if best.x is not None else proven
    status = "optimal" if best.x is not None and closed else best.status
    if best.x is not None and not closed:
        status = "feasible"
    return Sifted(answer=replace(best, bound=bound, status=status), columns=columns, ours=not everything)


def _next(delta: float, cost: float, z: float, gap: float) -> float:
    """Threefold, but no more than closes the gap once a solution is known."""
    grown = delta * GROWTH
    return min(grown, max(cost - z - gap * abs(cost) * 0.5, delta * 1.01)) if math.isfinite(cost) else grown


def _restricted(
    program: Program,
    keep: NDArray[np.bool_],
    solver: Solver,
    budget: Budget,
    incumbent: Floats | None,
    *,
    final: bool,
) -> Checked:
    part = select(program, keep)
    inside = incumbent is not None and not incumbent[~keep].any()
    start = incumbent[keep] if inside and incumbent is not None else None
    within = budget.part(1.0) if final else budget.part(0.5, gap=budget.gap * 0.5)
    answer = solve_checked(part, solver, within, start)
    if answer.x is None:
        return answer
    x = np.zeros(program.columns)
    x[keep] = answer.x
    return replace(answer, x=x)


def select(program: Program, keep: NDArray[np.bool_]) -> Program:
    """The program over some of its columns, the others fixed at 0."""
    lengths = np.diff(program.indptr)
    entries = np.repeat(keep, lengths)
    return replace(
        program,
        cost=program.cost[keep],
        lower=program.lower[keep],
        upper=program.upper[keep],
        integer=program.integer[keep],
        indptr=np.r_[0, np.cumsum(lengths[keep])],
        indices=program.indices[entries],
        data=program.data[entries],
        names=(),
    )


def _prices(program: Program, solver: Solver, budget: Budget) -> Floats | None:
    """Row prices of the LP relaxation, or None where the solver has none to give."""
    if not solver.features.duals:
        return None
    relaxed = replace(program, integer=np.zeros(program.columns, dtype=np.bool_))
    within = budget.part(0.5)
    solution = solver.solve(relaxed, work_limit=None, time_limit_s=within.time_left_s, gap=budget.gap)
    within.spend(replace(solution, work=0))
    if solution.status == "error":
        raise SolverError(f"the solver failed on the relaxation: {solution.termination}")
    duals = solution.row_duals
    if solution.status != "optimal" or duals is None or len(duals) != program.rows:
        return None
    return bounds.corrected(program, duals) if np.isfinite(duals).all() else None
