"""A solver that lies is caught; one that fails is survived."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.bound import corrected, lagrangian, reduced_costs
from coral.core.plan.budget import Budget
from coral.core.plan.check import claimed, solve_checked
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.errors import SolverError
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.programs import best_by_enumeration, random_covering
from coral.testing.tables import TableLibrary, held, offer, spec, template, view
from coral.types.plan import RunningInstance
from coral.types.program import Floats, Program, Solution, SolverFeatures

LIBRARY = TableLibrary({"a": {"small": 1.0, "big": 5.0}})
WORLD = view([spec("a", 5.5)], [offer("small", 1.0), offer("big", 3.0)])
Lie = Callable[[Program, Solution], Solution]


class Doubtful:
    """A solver whose answers are altered: always, or only where it was given a start."""

    def __init__(self, inner: Solver, lie: Lie, *, only_started: bool = False) -> None:
        self._inner, self._lie, self._only_started = inner, lie, only_started
        self.starts: list[bool] = []

    @property
    def features(self) -> SolverFeatures:
        return self._inner.features

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
    ) -> Solution:
        self.starts.append(start is not None)
        found = self._inner.solve(
            program, work_limit=work_limit, time_limit_s=time_limit_s, gap=gap, start=start
        )
        return found if self._only_started and start is None else self._lie(program, found)


def cheaper_than_it_is(_: Program, found: Solution) -> Solution:
    """What HiGHS 1.16 was seen to do: objective and bound below the cost of its own solution."""
    return replace(found, objective=found.objective * 0.9, bound=found.objective * 0.9)


def of_nothing(program: Program, found: Solution) -> Solution:
    return replace(found, x=np.zeros(program.columns), objective=0.0, bound=0.0)


def too_short(_: Program, found: Solution) -> Solution:
    return replace(found, x=None if found.x is None else found.x[:-1])


def not_numbers(_: Program, found: Solution) -> Solution:
    return replace(found, x=None if found.x is None else found.x * math.nan)


def halves(program: Program, found: Solution) -> Solution:
    x = np.zeros(0) if found.x is None else found.x + 0.4
    return replace(found, x=x, objective=float(program.cost @ x))


LIES: list[Lie] = [cheaper_than_it_is, of_nothing, too_short, not_numbers, halves]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_with_a_start_is_solved_again_cold(highs: Solver, lie: Lie) -> None:
    program = random_covering(3)
    solver = Doubtful(highs, lie, only_started=True)
    answer = solve_checked(program, solver, Budget(gap=0.0), np.full(4, 3.0))
    assert solver.starts == [True, False]
    assert answer.resolved_cold
    assert answer.cost == pytest.approx(best_by_enumeration(program))


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_told_twice_is_an_error(highs: Solver, lie: Lie) -> None:
    with pytest.raises(SolverError, match="does not hold"):
        solve_checked(random_covering(3), Doubtful(highs, lie), Budget(gap=0.0))


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_solver_gives_a_greedy_plan_that_says_so(highs: Solver, lie: Lie) -> None:
    plan = build(CoralOptions()).plan(WORLD, LIBRARY, Doubtful(highs, lie))
    assert plan.satisfied
    assert plan.certificate is None
    assert "does not hold" in plan.notes[0]
    assert "greedily" in plan.notes[1]


def test_a_bound_above_the_cost_is_not_claimed(highs: Solver) -> None:
    def boast(_: Program, found: Solution) -> Solution:
        return replace(found, bound=found.objective * 1.2)

    answer = solve_checked(random_covering(3), Doubtful(highs, boast), Budget(gap=0.0))
    assert answer.bound == -math.inf
    assert claimed(1.0 + 1e-9, 1.0) == 1.0
    assert claimed(math.nan, 1.0) == -math.inf


def out_of_reach(_: Program, found: Solution) -> Solution:
    return replace(found, status="infeasible", x=None, bound=math.inf)


def too_high(_: Program, found: Solution) -> Solution:
    return replace(found, status="no_solution", x=None, bound=1e6)


@pytest.mark.parametrize("lie", [out_of_reach, too_high])
def test_a_start_refutes_what_denies_it(highs: Solver, lie: Lie) -> None:
    program, start = random_covering(3), np.full(4, 3.0)
    answer = solve_checked(program, Doubtful(highs, lie, only_started=True), Budget(gap=0.0), start)
    assert answer.resolved_cold
    assert answer.cost == pytest.approx(best_by_enumeration(program))
    with pytest.raises(SolverError, match="the start"):
        solve_checked(program, Doubtful(highs, lie), Budget(gap=0.0), start)


def test_a_start_is_the_answer_where_the_solver_finds_none_or_a_dearer_one(highs: Solver) -> None:
    program = random_covering(3)
    best = solve_checked(program, highs, Budget(gap=0.0))
    assert best.x is not None

    def dearer(program: Program, found: Solution) -> Solution:
        x = np.full(program.columns, 3.0)
        return replace(found, status="feasible", x=x, objective=float(program.cost @ x), bound=1.0)

    for solver in (Slow(), Doubtful(highs, dearer)):
        answer = solve_checked(program, solver, Budget(gap=0.0), best.x)
        assert answer.status == "feasible"
        assert answer.cost == best.cost
        assert answer.bound <= best.cost


def optimal_with_a_gap(_: Program, found: Solution) -> Solution:
    """What HiGHS 1.16 was seen to do behind Pyomo: it calls its start optimal, far above its own bound."""
    return replace(found, bound=found.objective * 0.9)


def test_an_optimum_far_from_its_own_bound_is_solved_again_without_the_start(highs: Solver) -> None:
    solver = Doubtful(highs, optimal_with_a_gap, only_started=True)
    answer = solve_checked(random_covering(3), solver, Budget(gap=1e-4), np.full(4, 3.0))
    assert solver.starts == [True, False]
    assert (answer.status, answer.resolved_cold) == ("optimal", True)
    assert answer.bound == pytest.approx(answer.cost)


def test_without_a_start_it_is_no_more_than_feasible(highs: Solver) -> None:
    solver = Doubtful(highs, optimal_with_a_gap)
    answer = solve_checked(random_covering(3), solver, Budget(gap=1e-4))
    assert solver.starts == [False]
    assert answer.status == "feasible"
    assert answer.bound == pytest.approx(0.9 * answer.cost)


class Broken:
    features = SolverFeatures(integer=True, duals=False, start=True, deterministic_work_limit=True)

    def solve(self, program: Program, **_: object) -> Solution:
        raise SolverError("out of licences")


class Tiring:
    """Fails after so many solves."""

    def __init__(self, inner: Solver, solves: int) -> None:
        self._inner, self._left = inner, solves

    @property
    def features(self) -> SolverFeatures:
        return self._inner.features

    def solve(self, program: Program, **limits: Any) -> Solution:
        self._left -= 1
        if self._left < 0:
            raise SolverError("out of licences")
        return self._inner.solve(program, **limits)


@pytest.mark.parametrize("headroom", [False, True])
def test_what_was_found_before_the_solver_fails_is_a_plan(highs: Solver, headroom: bool) -> None:
    planner = CoralOptions(sift_above=0, headroom=headroom)
    ways = set()
    for solves in range(20):
        plan = build(planner).plan(WORLD, LIBRARY, Tiring(highs, solves))
        failed = any("out of licences" in note for note in plan.notes)
        if failed and plan.certificate is not None:
            assert plan.satisfied
            assert plan.certificate.bound_usd_h <= plan.certificate.cost_usd_h
        ways.add((failed, plan.certificate is not None))
    assert ways >= {(True, False), (False, True)}
    assert headroom <= ((True, True) in ways)


def test_what_runs_stays_when_the_solver_fails() -> None:
    running = RunningInstance(
        id="x", template=template("a", "small", 1.0), domain=held("m1", "small", 1.0).domain
    )
    world = replace(WORLD, machines=(held("m1", "small", 1.0),), running=(running,))
    plan = build(CoralOptions()).plan(world, LIBRARY, Broken())
    assert [(one.template.id, one.count, one.kept) for one in plan.instances] == [("a-small", 1, 1)]
    assert [(m.machine_type, m.kept, m.new) for m in plan.machines] == [("small.1", 1, 0)]
    assert not plan.satisfied
    assert "out of licences" in plan.notes[0]


class Slow:
    """Finds nothing within its limits."""

    features = Broken.features

    def solve(self, program: Program, **_: object) -> Solution:
        return Solution(status="no_solution", termination="time limit", seconds=1.0)


def test_greedy_where_the_solver_finds_nothing_in_time() -> None:
    plan = build(CoralOptions()).plan(WORLD, LIBRARY, Slow())
    assert plan.satisfied
    assert plan.price_usd_h >= 4.0
    assert "within its limits" in plan.notes[0]


def test_an_incumbent_at_the_time_limit_is_a_plan(highs: Solver) -> None:
    def unproven(program: Program, found: Solution) -> Solution:
        x = np.where(program.integer, np.ceil(np.minimum(program.upper, 6.0)), program.upper)
        if program.violation(x) > 1e-6:
            return found
        return replace(
            found, status="feasible", x=x, objective=float(program.cost @ x), bound=1.0, seconds=30.0
        )

    plan = build(CoralOptions()).plan(WORLD, LIBRARY, Doubtful(highs, unproven))
    assert plan.satisfied
    assert plan.certificate is not None
    assert plan.certificate.bound_usd_h <= plan.certificate.cost_usd_h
    assert 0 < plan.certificate.gap <= 1


def test_a_lagrangian_bound_never_exceeds_the_optimum(highs: Solver) -> None:
    draw = np.random.default_rng(4)
    for seed in range(30):
        program = random_covering(seed)
        optimum = best_by_enumeration(program)
        relaxed = replace(program, integer=np.zeros(program.columns, dtype=np.bool_))
        duals = highs.solve(relaxed, work_limit=None, time_limit_s=9.0, gap=0.0).row_duals
        assert duals is not None
        for prices in (duals, duals * draw.uniform(0.5, 1.5), draw.normal(size=program.rows)):
            y = corrected(program, prices)
            bound = lagrangian(program, y, reduced_costs(program, y))
            assert bound <= optimum + 1e-9


def test_limits_are_shared_by_all_solves(highs: Solver) -> None:
    asked: list[float | None] = []

    def note(_: Program, found: Solution) -> Solution:
        return replace(found, seconds=4.0)

    class Watched(Doubtful):
        def solve(self, program: Program, **limits: object) -> Solution:
            asked.append(limits["time_limit_s"])  # type: ignore[arg-type]
            return super().solve(program, **limits)  # type: ignore[arg-type]

    options = PlanOptions(
        target_utilization=1.0, slices=False, couple_phases=False, time_limit_s=20.0, gap=0.0
    )
    world = View(models=(spec("a", 50.0),), offers=(offer("small", 1.0, 3),), options=options)
    build(CoralOptions()).plan(world, LIBRARY, Watched(highs, note))
    assert len(asked) >= 3
    assert all(left is not None and left <= 20.0 for left in asked)
    assert asked[-1] is not None
    assert asked[-1] <= 12.0
