"""The certificate of an allocation: what it costs beside what anything must cost."""

from __future__ import annotations

from coral.core.plan.allocation import Allocation
from coral.core.plan.answer import bill
from coral.core.plan.budget import Budget
from coral.core.plan.check import claimed
from coral.core.plan.problem import Problem
from coral.types.plan import Certificate


def certified(
    problem: Problem, found: Allocation, bound: float, budget: Budget, *, source: str, columns: int
) -> Certificate:
    """The cost is computed again from the counts; a bound that contradicts it is not claimed, and none is
    below 0, since no price is. Work and seconds are what the budget has spent by now."""
    cost = bill(problem, found).cost_usd_h
    least = max(claimed(bound, cost), 0.0)
    return Certificate(
        cost_usd_h=cost,
        bound_usd_h=least,
        gap=(cost - least) / cost if cost > 0 else 0.0,
        source=source,
        work=budget.work,
        seconds=budget.seconds,
        columns=columns,
        columns_full=problem.columns_full,
    )
