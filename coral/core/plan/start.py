"""A first incumbent for the solver: what runs, where it serves the demand as it stands."""

from __future__ import annotations

import numpy as np

from coral.core.plan.check import FEASIBILITY
from coral.core.plan.formulation import Formulation
from coral.core.plan.problem import Problem
from coral.types.program import Floats, Program


def start_from_running(problem: Problem, formulation: Formulation, program: Program) -> Floats | None:
    """All kept instances on all held machines; None where that is no solution.

    Among plans of equal cost a solver keeps the incumbent it was given, so nothing is moved for nothing.
    """
    columns = problem.columns
    if not (columns.kept >= 0).any():
        return None
    x = np.zeros(program.columns)
    x[formulation.nu] = np.where(columns.kept >= 0, columns.upper, 0.0)
    for variable in formulation.machines:
        site = problem.sites[variable.site]
        lot = (*site.lots, *site.shaped)[variable.lot]
        x[variable.column] = lot.limit if lot.held else 0
    served = formulation.fraction[formulation.fraction >= 0]
    x[served] = 1.0
    for (model, index), column in formulation.shares.items():
        x[column] = _share(problem, x[formulation.nu], model, index)
    return x if program.violation(x) <= FEASIBILITY else None


def _share(problem: Problem, nu: Floats, model: int, site: int) -> float:
    """The part of a model's demand that both its phases can serve in a domain."""
    columns = problem.columns
    able = [
        float(nu @ np.where((columns.service == i) & (columns.domain == site), columns.throughput, 0.0))
        for i, need in enumerate(problem.needs)
        if need.model == model and need.demand > 0
    ]
    demand = [need.demand for need in problem.needs if need.model == model and need.demand > 0]
    return min(1.0, *(a / d for a, d in zip(able, demand, strict=True)))
