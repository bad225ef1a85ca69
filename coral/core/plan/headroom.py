"""Among plans of equal cost, the one with the most throughput to spare where it is least."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from coral.core.plan.budget import Budget
from coral.core.plan.check import Checked, solve_checked
from coral.core.plan.formulation import Formulation
from coral.core.plan.problem import Problem
from coral.hookspecs.solver import Solver
from coral.types.program import Floats

MOST = 10.0
"""Headroom beyond ten times the demand is worth nothing more."""


def with_headroom(
    problem: Problem, formulation: Formulation, answer: Checked, solver: Solver, budget: Budget
) -> Floats | None:
    """One more solve, lexicographically after the cost: max h with Σ T/d ν >= 1 + h for every service and
    the cost at most what it is. Adds to the formulation's builder. None where it has no answer in time."""
    if answer.x is None or budget.exhausted:
        return None
    builder = formulation.builder
    before = builder.build()
    spare = builder.variables(1, upper=MOST)
    for index, need in enumerate(problem.needs):
        if need.demand <= 0 or len(problem.view.models[need.model].phases) > 2:  # may be served otherwise
            continue
        lines = np.flatnonzero(problem.columns.service == index)
        row = builder.rows(1, lower=1.0)
        builder.entries(row, formulation.nu[lines], problem.columns.throughput[lines] / need.demand)
        builder.entries(row, spare, -1.0)
    priced = np.flatnonzero(before.cost)
    capped = builder.rows(1, upper=answer.cost * (1 + 1e-9) + 1e-9)
    builder.entries(capped, priced, before.cost[priced])
    program = builder.build()
    cost = np.zeros(program.columns)
    cost[spare] = -1.0
    start = np.r_[answer.x, 0.0]
    better = solve_checked(replace(program, cost=cost), solver, budget.part(0.25, gap=1e-3), start)
    return None if better.x is None else better.x[: before.columns]
