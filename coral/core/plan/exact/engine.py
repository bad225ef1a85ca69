"""The course of an exact solve: relaxation, bound over whole covers, small programs that close the gap.

1. Column generation gives row prices; whole covers then lift the bound to z.
2. The covers met on the way give a first solution, a small program over all covers of small excess a good
   one; where covers are too many to list, one over the columns of least excess.
3. A small program over what a solution below the cost known can use proves the rest::

       bound = max(previous, min(bound of the small program, z + δ))

   with the δ at which the cost known and the bound meet; without a solution δ grows threefold.

Every solution is checked against the whole program and its cost computed from it. Solvers are given no
start here: HiGHS 1.16 was seen to answer a start at once as optimal, at a cost that no solution
has, and would have to be asked again without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from coral.core.plan import bound as bounds
from coral.core.plan.budget import Budget
from coral.core.plan.check import FEASIBILITY, Checked, claimed, solve_checked
from coral.core.plan.exact.covers import covers
from coral.core.plan.exact.decomposition import Blocks, Decomposed, Whole, decompose
from coral.core.plan.exact.memory import Memory, Remembered
from coral.core.plan.exact.pool import Pool, Prospect
from coral.core.plan.exact.relaxation import Relaxed, relaxed
from coral.core.plan.exact.restricted import Restricted, chosen_of, settled
from coral.core.plan.sifted import Sifted, Whose
from coral.errors import SolverError
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program

FIRST = 0.0025
GROWTH = 3.0
LISTED = 3000
"""Covers of one demand, at most, that are listed one by one."""
COMPARED = 12_000
"""Covers of one demand, at most, that are compared with each other."""
EASY = 4000
"""Columns of a small program that is solved at once."""
NEARLY = 0.9
"""Of the gap, what a small program is solved to: the rest is for rounding."""
ROUNDS = 12
NARROW = ((20, 5e-3, 0.1), (60, 1e-3, 0.2))
"""Columns of a strand, gap and share of the budget of small programs that only look for solutions."""


def solve_exactly(
    program: Program,
    solver: Solver,
    budget: Budget,
    start: Floats | None = None,
    memory: Memory | None = None,
) -> Sifted | None:
    """None where the solver has no row prices to give within the budget."""
    known = memory.recall(program) if memory is not None else None
    relaxation = relaxed(
        program,
        solver,
        budget.part(0.4),
        known.prices if known else None,
        known.columns if known else None,
    )
    if relaxation is None:
        return None
    if relaxation.infeasible:
        return _infeasible(program)
    blocks = Blocks(program, covers(program))
    wholes = known.still(blocks) if known is not None else []
    decomposed = _decomposed(blocks, relaxation, wholes, solver, budget.part(0.4))
    if decomposed is None:
        return _infeasible(program)
    course = _Course(blocks, decomposed, relaxation, solver, budget)
    for one in (start, known.x if known is not None else None):
        if one is not None:
            course.offer(settled(blocks, one.copy()))
    found = course.run()
    if memory is not None:
        memory.keep(
            program,
            Remembered(
                prices=decomposed.prices,
                columns=relaxation.columns,
                wholes=decomposed.wholes,
                x=found.answer.x,
            ),
        )
    return found


def _infeasible(program: Program) -> Sifted:
    answer = Checked(status="infeasible", bound=math.inf)
    return Sifted(answer=answer, columns=program.columns, whose="ours")


def _decomposed(
    blocks: Blocks, relaxation: Relaxed, wholes: Sequence[Whole], solver: Solver, budget: Budget
) -> Decomposed | None:
    if not blocks.covers:
        return Decomposed(
            prices=relaxation.prices,
            bound=relaxation.bound,
            least=np.zeros(0),
            value=relaxation.value,
            wholes=(),
            rounds=0,
        )
    free = np.intersect1d(blocks.free, relaxation.columns)
    return decompose(blocks, solver, budget, relaxation.prices, free, wholes)


class _Course:
    def __init__(
        self,
        blocks: Blocks,
        decomposed: Decomposed,
        relaxation: Relaxed,
        solver: Solver,
        budget: Budget,
    ) -> None:
        self.blocks, self.program = blocks, blocks.program
        self.decomposed, self.relaxation = decomposed, relaxation
        self.solver, self.budget = solver, budget
        self.reduced = bounds.reduced_costs(self.program, decomposed.prices)
        self.base = decomposed.bound
        self.proven = max(decomposed.bound, relaxation.bound)
        self.best = Checked(status="no_solution")
        self.resolved = False
        self.columns = 0
        self.whose: Whose = "ours"

    def run(self) -> Sifted:
        """Raises SolverError where the solver fails before there is a solution."""
        failure = ""
        try:
            self._search()
        except SolverError as error:
            if self.best.x is None:
                raise
            failure = error.message
        return self._sifted(failure)

    def _search(self) -> None:
        prospect = Prospect(self.blocks, self.decomposed, self.reduced)
        if self.decomposed.wholes and not self.closed:
            self._mix()
        delta = max(FIRST * abs(self.proven), 1e-9)
        if self.blocks.covers and not self.closed:
            delta, pool = self._listable(prospect, delta)
        else:
            pool = self._pool(prospect, delta)
        narrowed = not self.blocks.covers
        for _ in range(ROUNDS):
            if self.closed or self.budget.exhausted:
                break
            status = self._round(pool, delta)
            if pool.everything and status == "infeasible" and self.best.x is None:
                self.proven = math.inf
                break
            if pool.everything:
                self.whose = "solver"
                break
            delta = self._next(delta)
            pool = self._pool(prospect, delta)
            if not narrowed and not self.closed and not (pool.listed and pool.size <= EASY):
                narrowed = True
                self._narrow(prospect)
                delta = self._next(delta)
                pool = self._pool(prospect, delta)

    @property
    def closed(self) -> bool:
        cost = self.best.cost
        return self.best.x is not None and cost - self.proven <= self.budget.gap * abs(cost) + 1e-9

    def _pool(self, prospect: Prospect, delta: float) -> Pool:
        return prospect.pool(delta, most=COMPARED, kept=LISTED)

    def _listable(self, prospect: Prospect, delta: float) -> tuple[float, Pool]:
        """The largest δ, doubled from the first one, at which all covers are listed and few."""
        pool = self._pool(prospect, delta)
        enough = self._enough()
        while pool.listed and pool.size <= EASY and delta < enough:
            wider = min(2 * delta, enough)
            next_pool = self._pool(prospect, wider)
            if not next_pool.listed or next_pool.size > EASY:
                break
            delta, pool = wider, next_pool
        return delta, pool

    def _enough(self) -> float:
        """δ at which the bound meets the cost that is known."""
        cost = self.best.cost
        return cost - self.base - self.budget.gap * abs(cost) * NEARLY if math.isfinite(cost) else math.inf

    def _next(self, delta: float) -> float:
        enough = self._enough()
        return max(enough, delta * 1.01) if math.isfinite(enough) else delta * GROWTH

    def _mix(self) -> None:
        """A first solution of the covers that the decomposition met."""
        free = np.intersect1d(self.blocks.free, self.relaxation.columns)
        small = self._small(chosen_of(self.blocks, self.decomposed.wholes, free))
        within = self.budget.part(0.1, gap=max(self.budget.gap, 1e-3))
        self._take(small, solve_checked(small.program, self.solver, within))

    def _round(self, pool: Pool, delta: float) -> str:
        small = self._small(pool)
        final = delta >= self._enough() - 1e-12 or pool.everything
        within = self.budget.part(1.0 if final else 0.25, gap=self.budget.gap * NEARLY)
        answer = solve_checked(small.program, self.solver, within)
        if answer.status == "infeasible" and self.best.x is not None:
            raise SolverError("it calls a program infeasible that has the solution known")
        self._take(small, answer)
        reach = math.inf if pool.everything else self.base + delta
        if min(answer.bound, reach) > self.proven:
            self.proven = min(answer.bound, reach)
            self.whose = "both"
        return answer.status

    def _take(self, small: Restricted, answer: Checked) -> None:
        self.columns = max(self.columns, small.program.columns)
        self.resolved = self.resolved or answer.resolved_cold
        if answer.x is not None:
            self.offer(small.expand(answer.x))

    def _narrow(self, prospect: Prospect) -> None:
        """Better solutions from the columns of least excess, few and then more."""
        for most, gap, share in NARROW:
            if self.closed or self.budget.exhausted:
                return
            small = self._small(prospect.nearest(most))
            within = self.budget.part(share, gap=max(gap, self.budget.gap))
            self._take(small, solve_checked(small.program, self.solver, within))

    def _small(self, pool: Pool) -> Restricted:
        return Restricted(self.blocks, pool, self.reduced, self.decomposed.least, self.best.x)

    def offer(self, x: Floats) -> None:
        """A solution, where it holds in the whole program and is truly cheaper: of equals the first stays."""
        if self.program.violation(x) <= FEASIBILITY:
            cost = float(self.program.cost @ x)
            if cost < self.best.cost - 1e-9 * max(1.0, abs(cost)):
                self.best = Checked(status="feasible", x=x, cost=cost)

    def _sifted(self, failure: str) -> Sifted:
        best = self.best
        if best.x is None and self.proven == math.inf:
            return _infeasible(self.program)
        if best.x is None:
            answer = Checked(status="no_solution", bound=self.proven)
        else:
            bound = claimed(self.proven, best.cost)
            answer = replace(best, bound=bound, status="optimal" if self.closed else "feasible")
        answer = replace(answer, resolved_cold=self.resolved, failure=failure)
        return Sifted(answer=answer, columns=self.columns, whose=self.whose)
