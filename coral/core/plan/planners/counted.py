"""The plan of an allocation that was made without a solver, checked and costed like any other."""

from __future__ import annotations

from coral.core.plan.allocation import Allocation, steadied, trimmed
from coral.core.plan.answer import plan_of, services
from coral.core.plan.missing import shortages
from coral.core.plan.problem import Problem
from coral.errors import SolverError
from coral.hookspecs.planner import Library
from coral.types.plan import Plan


def counted_plan(problem: Problem, library: Library, found: Allocation, *, planner: str, note: str) -> Plan:
    """Raises SolverError where the allocation does not hold: a fault of the planner's own."""
    kept, faults = trimmed(problem, steadied(problem, found))
    if faults:
        raise SolverError(f"the plan of planner {planner} does not hold: " + "; ".join(faults))
    notes = [note, *shortages(problem, services(problem, kept))]
    return plan_of(problem, library, kept, planner=planner, certificate=None, notes=notes)
