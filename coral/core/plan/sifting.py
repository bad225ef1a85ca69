"""Minimise a program: as a whole where it is small, over what can matter, with proof, where it is large."""

from __future__ import annotations

from coral.core.plan.budget import Budget
from coral.core.plan.check import solve_checked
from coral.core.plan.exact.engine import solve_exactly
from coral.core.plan.exact.memory import Memory
from coral.core.plan.sifted import Sifted
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program


def minimise(
    program: Program,
    solver: Solver,
    budget: Budget,
    start: Floats | None = None,
    *,
    sift_above: int,
    memory: Memory | None = None,
) -> Sifted:
    """The program as a whole up to `sift_above` columns, and where the solver gives no row prices."""
    if program.columns > sift_above and solver.features.duals:
        found = solve_exactly(program, solver, budget, start, memory)
        if found is not None:
            return found
    answer = solve_checked(program, solver, budget, start)
    return Sifted(answer=answer, columns=program.columns, whose="solver")
