"""The exact course against HiGHS on the whole program: optimum, bound, relaxation, cuts, memory."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from coral_solver_highs.solver import HighsSolver

from coral.core.plan import bound as bounds
from coral.core.plan.budget import Budget
from coral.core.plan.exact.covers import covers
from coral.core.plan.exact.decomposition import Blocks, decompose
from coral.core.plan.exact.engine import solve_exactly
from coral.core.plan.exact.memory import Memory
from coral.core.plan.exact.pool import Prospect
from coral.core.plan.exact.relaxation import relaxed
from coral.core.plan.exact.restricted import Restricted
from coral.testing.linked import linked_covers
from coral.types.program import Program, Solution

KINDS: list[dict[str, bool | float]] = [
    {},
    {"machines": True},
    {"limited": True},
    {"survival": True},
    {"parts": True},
    {"parts": True, "machines": True, "limited": True},
    {"machines": True, "limited": True, "survival": True},
    {"scarce": 0.6},
    {"small": 0.02},
    {"small": 0.02, "parts": True},
]
SEEDS = int(os.environ.get("CORAL_CAMPAIGN", "4"))


def whole(highs: HighsSolver, program: Program) -> Solution:
    return highs.solve(program, work_limit=None, time_limit_s=60.0, gap=0.0)


def linear(program: Program) -> Program:
    from msgspec.structs import replace

    return replace(program, integer=np.zeros(program.columns, dtype=np.bool_))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_optimum_and_certificate(highs: HighsSolver, kind: dict[str, bool | float], seed: int) -> None:
    program = linked_covers(seed, **kind)  # type: ignore[arg-type]
    best = whole(highs, program)
    found = solve_exactly(program, highs, Budget(gap=1e-6))
    assert found is not None
    if best.status == "infeasible":
        assert found.answer.status == "infeasible"
        return
    assert found.answer.status == "optimal"
    assert found.answer.x is not None
    assert program.violation(found.answer.x) <= 1e-6
    assert found.answer.cost == pytest.approx(best.objective, rel=2e-6)
    assert found.answer.bound <= best.objective * (1 + 1e-7) + 1e-7


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_column_generation_solves_the_relaxation(
    highs: HighsSolver, kind: dict[str, bool | float], seed: int
) -> None:
    program = linked_covers(seed, **kind)  # type: ignore[arg-type]
    direct = whole(highs, linear(program))
    found = relaxed(program, highs, Budget(gap=1e-6))
    assert found is not None
    if direct.status == "infeasible":
        assert found.infeasible
        return
    assert not found.infeasible
    assert found.bound == pytest.approx(direct.objective, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_pool_leaves_out_and_cuts_off_is_no_optimum(
    highs: HighsSolver, kind: dict[str, bool | float], seed: int
) -> None:
    """At a limit just above the optimum the small program, of covers or of columns with cuts, has it."""
    program = linked_covers(seed, **kind)  # type: ignore[arg-type]
    best = whole(highs, program)
    if best.status == "infeasible":
        return
    slack = 1e-6 + 2e-6 * abs(best.objective)
    budget = Budget(gap=0.0)
    relaxation = relaxed(program, highs, budget)
    blocks = Blocks(program, covers(program))
    assert relaxation is not None
    found = decompose(blocks, highs, budget, relaxation.prices, blocks.free)
    assert found is not None
    assert relaxation.bound - slack <= found.bound <= best.objective + slack
    reduced = bounds.reduced_costs(program, found.prices)
    prospect = Prospect(blocks, found, reduced)
    delta = best.objective - found.bound + slack
    for most in (0, 50_000):
        pool = prospect.pool(delta, most=most, kept=50_000)
        small = Restricted(blocks, pool, reduced, found.least, None)
        answer = whole(highs, small.program)
        assert answer.objective == pytest.approx(best.objective, rel=2e-6), most
        assert answer.x is not None
        assert program.violation(small.expand(answer.x)) <= 1e-6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_memory_of_another_demand_changes_no_optimum(highs: HighsSolver, seed: int) -> None:
    memory = Memory()
    before = linked_covers(seed, machines=True)
    assert solve_exactly(before, highs, Budget(gap=1e-6), None, memory) is not None
    program = linked_covers(seed + 1000, machines=True)
    warm = solve_exactly(program, highs, Budget(gap=1e-6), None, memory)
    cold = solve_exactly(program, highs, Budget(gap=1e-6))
    assert warm is not None
    assert cold is not None
    assert warm.answer.cost == pytest.approx(cold.answer.cost, rel=2e-6)
    assert warm.answer.status == cold.answer.status == "optimal"


class Denying:
    """Calls every integer program infeasible, but for the first few."""

    def __init__(self, inner: HighsSolver, honest: int) -> None:
        self.features = inner.features
        self._inner, self._honest = inner, honest

    def solve(self, program: Program, **limits: Any) -> Solution:
        if program.integer.any():
            self._honest -= 1
            if self._honest < 0:
                return Solution(status="infeasible", termination="infeasible", bound=np.inf)
        return self._inner.solve(program, **limits)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_program_that_has_the_known_solution_is_not_infeasible(highs: HighsSolver, seed: int) -> None:
    program = linked_covers(seed, machines=True, parts=True)
    best = whole(highs, program).objective
    for honest in range(1, 4):
        found = solve_exactly(program, Denying(highs, honest), Budget(gap=1e-6))
        assert found is not None
        assert found.answer.bound <= best * (1 + 1e-7)
        assert found.answer.x is not None
        assert found.answer.failure
        assert found.answer.status == "feasible"
