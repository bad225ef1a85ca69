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
    held: set[tuple[int, int]] = set()
    for variable in formulation.machines:
        lot = problem.sites[variable.site].lot(variable.lot)
        if lot.held and (variable.site, variable.lot) not in held:  # a lot may have two ways of use
            held.add((variable.site, variable.lot))
            x[variable.column] = lot.limit
    x = formulation.settled(x)
    return x if program.violation(x) <= FEASIBILITY else None
