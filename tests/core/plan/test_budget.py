"""Limits: by the clock where there is one, by what solvers report in any case, reproducible by work alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from coral.core.plan.budget import Budget
from coral.core.plan.planners.coral import CoralPlanner
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.worlds import random_world
from coral.types.program import Floats, Program, Solution, SolverFeatures


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_clock_counts_whatever_the_time_went_into() -> None:
    clock = Clock()
    budget = Budget(gap=0.0, time_limit_s=10.0, clock=clock)
    part = budget.part(0.5)
    assert part.time_left_s == 5.0
    clock.now += 4.0
    assert (part.time_left_s, budget.time_left_s) == (1.0, 6.0)
    clock.now += 7.0
    assert budget.exhausted
    assert budget.part(1.0).time_left_s == 0.0


def test_what_solvers_report_counts_without_a_clock() -> None:
    budget = Budget(gap=0.0, time_limit_s=10.0)
    budget.part(0.3).spend(Solution(status="no_solution", termination="", seconds=8.0, work=5))
    assert budget.time_left_s == pytest.approx(2.0)
    assert budget.work == 5


class Counting:
    """A solver that takes a second of the clock for every solve and what it was given at most."""

    def __init__(self, inner: Solver, clock: Clock) -> None:
        self.inner, self.clock, self.late = inner, clock, 0

    @property
    def features(self) -> SolverFeatures:
        return self.inner.features

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
    ) -> Solution:
        if time_limit_s is not None:
            self.late += time_limit_s <= 0.0
            self.clock.now += min(1.0, time_limit_s)
        return self.inner.solve(
            program, work_limit=work_limit, time_limit_s=time_limit_s, gap=gap, start=start
        )


@pytest.mark.parametrize("scarce", [1.0, 30.0])
def test_a_plan_keeps_its_time_limit_in_plenty_and_in_scarcity(highs: Solver, scarce: float) -> None:
    world = random_world(3, PlanOptions(time_limit_s=12.0), models=3, scarce=scarce)
    clock = Clock()
    solver = Counting(highs, clock)
    plan = CoralPlanner(CoralOptions(sift_above=0), clock).plan(world.view, world.library, solver)
    assert plan.services
    assert clock.now - 100.0 <= 12.0 + 1e-6
    assert solver.late <= 12


def no_clock() -> float:
    raise AssertionError("a plan with a work limit alone looked at the clock")


@pytest.mark.parametrize("scarce", [1.0, 30.0])
def test_with_a_work_limit_alone_two_runs_give_one_plan(highs: Solver, scarce: float) -> None:
    options = PlanOptions(time_limit_s=None, work_limit=30)
    world = random_world(5, options, models=2, scarce=scarce)
    looked: Callable[[], float] = no_clock
    plans = [
        CoralPlanner(CoralOptions(sift_above=0), looked).plan(world.view, world.library, highs)
        for _ in range(2)
    ]
    assert plans[0].instances == plans[1].instances
    assert plans[0].machines == plans[1].machines
    assert math.isclose(plans[0].price_usd_h, plans[1].price_usd_h)
