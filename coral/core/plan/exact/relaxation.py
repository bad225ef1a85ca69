"""The linear relaxation by column generation: solve over few columns, add those that row prices call cheap.

Prices are smoothed towards the best ones so far (Wentges 1997), which keeps them from swinging; the
bound of every round is recomputed in float64 over all columns. Rows that few columns cannot satisfy
are helped by artificial ones; where they stay in, how far the rows are from satisfiable is minimised
instead, and a positive bound on that proves that the program has no solution.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from coral.core.plan import bound as bounds
from coral.core.plan.budget import Budget
from coral.errors import SolverError
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Ints, Program, Solution

SMOOTHING = 0.3
ENTERING = 40
"""Columns that may enter in a round, of those whose last row is the same."""
ROUNDS = 200
CLOSE = 1e-9


class Relaxed(Struct, frozen=True, kw_only=True, eq=False):
    """`prices` (rows,) with their `bound`; `value` of the restricted program, equal to it where solved.

    `infeasible`: proved, by prices under which no x satisfies the rows."""

    prices: Floats
    bound: float
    value: float
    columns: Ints
    rounds: int
    infeasible: bool = False


def relaxed(
    program: Program,
    solver: Solver,
    budget: Budget,
    prices: Floats | None = None,
    columns: Ints | None = None,
) -> Relaxed | None:
    """`prices` and `columns` of a program alike save rounds. None where limits end it without prices."""
    dear = 10.0 * max(1.0, float(np.abs(program.cost).max(initial=0.0)))
    found = _generate(program, solver, budget, prices, columns, dear)
    for _ in range(2):
        if found is None or found[1] <= 1e-7:
            break
        dear *= 100.0
        found = _generate(program, solver, budget, found[0].prices, found[0].columns, dear)
    if found is None:
        return None
    answer, short = found
    if short > 1e-7:
        still = replace(program, cost=np.zeros(program.columns))
        proof = _generate(still, solver, budget, None, answer.columns, 1.0)
        if proof is not None and proof[0].bound > 1e-6:
            return replace(proof[0], infeasible=True)
    return answer


def linear(program: Program, solver: Solver, budget: Budget) -> Solution:
    """A small linear program solved; once more where the solver fails: HiGHS 1.16 was seen to fail on the
    first program of a process, and not on the same one again. Raises SolverError where it fails twice."""
    failed = SolverError("the solver failed on the relaxation")
    for _ in range(2):
        try:
            solution = solver.solve(program, work_limit=None, time_limit_s=budget.time_left_s, gap=budget.gap)
        except SolverError as error:
            failed = error
            continue
        budget.spend(replace(solution, work=0))
        if solution.status != "error":
            return _of_shape(program, solution)
        failed = SolverError(f"the solver failed on the relaxation: {solution.termination}")
    raise failed


def _of_shape(program: Program, solution: Solution) -> Solution:
    """Without a solution or row prices that are not of the program's size."""
    x, duals = solution.x, solution.row_duals
    return replace(
        solution,
        x=x if x is not None and x.shape == (program.columns,) else None,
        row_duals=duals if duals is not None and duals.shape == (program.rows,) else None,
    )


class _Restricted:
    """Some columns of a program, and one artificial for every side of a row that nothing satisfies."""

    def __init__(self, program: Program, dear: float, columns: Ints) -> None:
        self.program, self.dear = program, dear
        self.inside = np.zeros(program.columns, dtype=np.bool_)
        self.inside[columns] = True
        at_lower = program.activity(np.where(np.isfinite(program.lower), program.lower, 0.0))
        self.below = np.flatnonzero(at_lower < program.row_lower)
        self.above = np.flatnonzero(at_lower > program.row_upper)
        self.sign = np.r_[np.ones(len(self.below)), -np.ones(len(self.above))]
        self.rows = np.r_[self.below, self.above].astype(np.int64)

    def build(self) -> Program:
        part = select(self.program, self.inside)
        n = len(self.rows)
        return replace(
            part,
            cost=np.r_[part.cost, np.full(n, self.dear)],
            lower=np.r_[part.lower, np.zeros(n)],
            upper=np.r_[part.upper, np.full(n, np.inf)],
            integer=np.zeros(part.columns + n, dtype=np.bool_),
            indptr=np.r_[part.indptr, part.indptr[-1] + np.arange(1, n + 1)],
            indices=np.r_[part.indices, self.rows],
            data=np.r_[part.data, self.sign],
        )

    def affordable(self, prices: Floats) -> Floats:
        """Prices scaled so that no artificial column is worth more than it costs: needed for a bound of the
        program that has them, harmless for one of the program that has not."""
        worth = float((prices[self.rows] * self.sign).max(initial=0.0))
        return prices * (self.dear / worth) if worth > self.dear else prices


def _generate(
    program: Program,
    solver: Solver,
    budget: Budget,
    prices: Floats | None,
    columns: Ints | None,
    dear: float,
) -> tuple[Relaxed, float] | None:
    """Also returns how much of artificial columns the last solution uses."""
    first = np.flatnonzero(~program.integer | (program.lower != 0) | (_lengths(program) == 0))
    master = _Restricted(program, dear, first if columns is None else np.union1d(first, columns))
    last = _last_rows(program)
    center: Floats | None = None
    best = -np.inf
    if prices is not None:
        center = master.affordable(bounds.corrected(program, prices))
        reduced = bounds.reduced_costs(program, center)
        best = bounds.lagrangian(program, center, reduced)
        master.inside[_entering(reduced, master.inside, last, everything=True)] = True
    value, short, rounds = np.inf, 0.0, 0
    while rounds < ROUNDS:
        rounds += 1
        small = master.build()
        solution = linear(small, solver, budget)
        duals = solution.row_duals
        if (
            solution.status != "optimal"
            or duals is None
            or solution.x is None
            or not np.isfinite(duals).all()
        ):
            break
        value = float(solution.objective)
        short = float(solution.x[small.columns - len(master.rows) :].sum())
        y = master.affordable(bounds.corrected(program, duals))
        smooth = y if center is None else SMOOTHING * center + (1 - SMOOTHING) * y
        entered = False
        for tried in (smooth, y) if center is not None else (y,):
            reduced = bounds.reduced_costs(program, tried)
            low = bounds.lagrangian(program, tried, reduced)
            if center is None or low > best:
                best, center = low, tried
            entering = _entering(reduced, master.inside, last)
            if len(entering):
                master.inside[entering] = True
                entered = True
                break
        if not entered or value - best <= CLOSE * max(1.0, abs(value)) or budget.exhausted:
            break
    if center is None:
        return None
    answer = Relaxed(
        prices=center, bound=best, value=value, columns=np.flatnonzero(master.inside), rounds=rounds
    )
    return answer, short


def _lengths(program: Program) -> Ints:
    return np.diff(program.indptr)


def _last_rows(program: Program) -> Ints:
    """The last row of every column: a demand row, where rows are written supply first."""
    out = np.full(program.columns, -1, dtype=np.int64)
    some = _lengths(program) > 0
    out[some] = program.indices[program.indptr[1:][some] - 1]
    return out


def _entering(
    reduced: Floats,
    inside: NDArray[np.bool_],
    last: Ints,
    *,
    everything: bool = False,
) -> Ints:
    """The cheapest columns outside by their last row; `everything`: also those that are not below 0."""
    fit = np.flatnonzero(~inside if everything else (reduced < -1e-9) & ~inside)
    if not len(fit):
        return fit
    order = fit[np.lexsort((reduced[fit], last[fit]))]
    starts = np.flatnonzero(np.r_[True, np.diff(last[order]) != 0])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    most = ENTERING // 4 if everything else ENTERING
    return np.sort(order[rank < most])


def select(program: Program, keep: NDArray[np.bool_]) -> Program:
    """The program over some of its columns, the others fixed at 0."""
    columns = np.flatnonzero(keep)
    lengths = _lengths(program)[columns]
    starts = program.indptr[columns]
    indptr = np.r_[0, np.cumsum(lengths)].astype(np.int64)
    entries = np.arange(indptr[-1]) - np.repeat(indptr[:-1] - starts, lengths)
    return Program(
        cost=program.cost[columns],
        lower=program.lower[columns],
        upper=program.upper[columns],
        integer=program.integer[columns],
        indptr=indptr,
        indices=program.indices[entries],
        data=program.data[entries],
        row_lower=program.row_lower,
        row_upper=program.row_upper,
    )
