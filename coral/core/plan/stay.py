"""The plan that changes nothing: where the solver fails, what runs stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coral.core.plan.allocation import Allocation
from coral.core.plan.answer import plan_of
from coral.core.plan.problem import Problem
from coral.hookspecs.planner import Library
from coral.types.plan import Plan


def stay(problem: Problem, library: Library, *, planner: str, notes: Sequence[str]) -> Plan:
    """Every running instance that still counts, and every machine that is held."""
    columns = problem.columns
    counts = np.where(columns.kept >= 0, columns.upper, 0.0).astype(np.int64)
    machines = tuple(
        tuple(lot.limit if lot.held else 0 for lot in (*site.lots, *site.shaped)) for site in problem.sites
    )
    found = Allocation(counts=counts, machines=machines)
    return plan_of(problem, library, found, planner=planner, certificate=None, notes=notes)
