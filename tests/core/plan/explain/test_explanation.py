"""What an explanation says against plans that are solved otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.explain.estimates import NONE, estimates
from coral.core.plan.explain.explanation import explain
from coral.core.plan.explain.forbidden import Forbidding
from coral.core.plan.explain.questions import Question, questions
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.what_if import with_demand
from coral.core.plan.formulation import formulate
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.core.plan.problem import state
from coral.errors import SolverError
from coral.hookspecs.planner import Library, PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.tables import HOME, TableLibrary, held, offer, spec, view
from coral.testing.worlds import MemoryLibrary, World, pipeline, random_world
from coral.types.hardware import NodeType
from coral.types.plan import Plan

PLANNER = build(CoralOptions())
WORLDS = range(int(os.environ.get("CORAL_EXPLAINED_WORLDS", "4")))
"""A longer campaign by the environment variable."""
A, B = NodeType("a", 1), NodeType("b", 1)


def endless(solver: Solver) -> Solves:
    return Solves(PLANNER, solver, clock=lambda: 0.0, limit_s=None)


def solved(world: World, solver: Solver) -> Plan:
    return PLANNER.plan(world.view, world.library, solver)


def as_asked(world: World, question: Question) -> World:
    """The changed world for a reference that reads templates, not tables."""
    if question.service is None:
        return World(view=question.view, library=world.library)
    chosen = question.about.split(" without ")[1]
    kept = [
        one
        for key, some in world.library.templates.items()
        for one in some
        if key != question.service
        or " + ".join(f"{n}× {k}" if n > 1 else str(k) for k, n in sorted(one.nodes.items())) != chosen
    ]
    return World(view=question.view, library=MemoryLibrary(kept))


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("seed", WORLDS)
def test_every_figure_is_what_brute_force_finds(
    seed: int, slices: bool, highs: Solver, reference: Callable[[World], float | None]
) -> None:
    options = PlanOptions(slices=slices, gap=0.0, time_limit_s=30.0)
    world = random_world(
        seed, options, sizes=(1, 2), machine_sizes=(1, 2), running=2 * (seed % 2), initialization_s=300.0
    )
    plan = solved(world, highs)
    before = reference(world)
    assert plan.satisfied is (before is not None)
    if before is None:
        return
    guess = estimates(world.view, world.library, highs, None)
    asked = questions(world.view, world.library, plan, guess, few=3, rebuilt=None)
    told = explain(world.view, world.library, plan, endless(highs), few=3)
    assert [one.about for one in told.answers] == [one.about for one in asked]
    assert {one.kind for one in asked} >= {"demand", "template", "machine"}
    for question, answer in zip(asked, told.answers, strict=True):
        after = reference(as_asked(world, question))
        assert answer.figure is not None
        if after is None:
            assert answer.figure.usd_h is None, question.about
            assert any(one.after < one.before for one in answer.figure.served)
        else:
            assert answer.figure.usd_h == pytest.approx(after - before, abs=2e-5), question.about
            assert answer.figure.told_apart is (abs(after - before) > 2e-5), question.about


def test_estimates_are_the_slopes_of_the_relaxation(highs: Solver) -> None:
    """25 requests/s at 10 a machine: 1 of `a` at 1 USD/h, all that there is, the rest on `b` at 3."""
    some = view([spec("m", 25.0)], [offer("a", 1.0, 1), offer("b", 3.0, 9), offer("c", 2.0, 0)])
    library = TableLibrary({"m": {"a": 10.0, "b": 10.0, "c": 10.0}})
    found = estimates(some, library, highs, None)
    assert found.demand == pytest.approx({"m": 0.3})
    assert found.offers == pytest.approx(
        {"here/one:a.1:on_demand": 2.0, "here/one:b.1:on_demand": 0.0} | {"here/one:c.1:on_demand": 1.0}
    )


def test_more_demand_costs_nothing_where_one_instance_has_room(highs: Solver) -> None:
    library = TableLibrary({"m": {"a": 10.0}, "n": {"b": 4.0}})
    some = view([spec("m", 2.0), spec("n", 5.0)], [offer("a", 1.0, 3), offer("b", 2.0, 3)])
    assert estimates(some, library, highs, None).demand == pytest.approx({"m": 0.0, "n": 0.5})


@pytest.mark.parametrize("seed", range(4))
def test_the_slope_of_demand_is_that_of_the_relaxation(seed: int, highs: Solver) -> None:
    world = random_world(seed, PlanOptions(), initialization_s=300.0)
    found = estimates(world.view, world.library, highs, None)
    assert found.demand
    for name, slope in found.demand.items():
        before, after = (
            _relaxed_cost(with_demand(world.view, name, _demand_of(world.view, name) * factor), world, highs)
            for factor in (1 - 1e-5, 1 + 1e-5)
        )
        step = 2e-5 * _demand_of(world.view, name)
        assert slope == pytest.approx((after - before) / step, rel=1e-3, abs=1e-4)


def _demand_of(view: View, name: str) -> float:
    return next(one.demand.requests_per_s for one in view.models if one.name == name)


def _relaxed_cost(view: View, world: World, solver: Solver) -> float:
    problem = state(view, world.library)
    program = formulate(problem).builder.build()
    upper = np.where(program.integer, np.inf, program.upper)
    upper = np.where(np.isin(np.arange(program.columns), formulate(problem).nu), upper, program.upper)
    relaxed = replace(program, upper=upper, integer=np.zeros(program.columns, dtype=np.bool_))
    return solver.solve(relaxed, work_limit=None, time_limit_s=None, gap=0.0).objective


def test_without_a_solution_of_the_relaxation_nothing_is_estimated(highs: Solver) -> None:
    some = view([spec("m", 25.0)], [offer("a", 1.0, 1)])
    assert estimates(some, TableLibrary({"m": {"a": 10.0}}), highs, None) == NONE


def test_the_best_offer_is_asked_about_first(highs: Solver) -> None:
    offers = [offer("a", 1.0, 1), offer("b", 3.0, 9), offer("c", 2.5, 1)]
    some = view([spec("m", 45.0)], offers)
    library = TableLibrary({"m": {"a": 10.0, "b": 10.0, "c": 10.0}})
    plan = PLANNER.plan(some, library, highs)
    found = explain(some, library, plan, endless(highs))
    told = [one for one in found.answers if one.kind == "offer"]
    assert [one.what_if for one in told] == [
        'offers."here/one:a.1:on_demand".obtainable=2',
        'offers."here/one:c.1:on_demand".obtainable=2',
    ]
    assert [one.estimate_usd_h for one in told] == pytest.approx([-2.0, -0.5])
    figures = [one.figure.usd_h for one in found.answers if one.figure is not None and one.kind == "offer"]
    assert figures == pytest.approx([-2.0, -0.5])


def test_why_and_what_binds(highs: Solver) -> None:
    """30 requests/s: `a` gives 10 for 1 USD/h but there are 2; `b` 12 for 2; `c` is dear."""
    offers = [offer("a", 1.0, 2), offer("b", 2.0, 5), offer("c", 9.0, 5)]
    some = view([spec("m", 30.0)], offers)
    library = TableLibrary({"m": {"a": 10.0, "b": 12.0, "c": 10.0}})
    plan = PLANNER.plan(some, library, highs)
    found = explain(some, library, plan, endless(highs))
    cheap, dear = found.instances
    assert (cheap.count, cheap.price.nodes, cheap.price.usd_h) == (2, "a x1", 1.0)
    assert cheap.price.per_unit == pytest.approx(1.0 / 36_000 * 1000)
    assert (dear.count, dear.price.nodes) == (1, "b x1")
    assert cheap.next_best is not None
    assert (cheap.next_best.nodes, cheap.next_best.usd_h) == ("c x1", 9.0)
    assert [(m.machine_type, m.count, m.gpus, m.gpus_used, m.serves) for m in found.machines] == [
        ("b.1", 1, 1, 1, ("m mixed",)),
        ("a.1", 2, 2, 2, ("m mixed",)),
    ]
    limits = {one.about: (round(one.used), round(one.limit), one.binds) for one in found.constraints}
    assert limits["here/one:a.1:on_demand"] == (2, 2, True)
    assert limits["here/one:b.1:on_demand"] == (1, 5, False)
    assert limits["m mixed"] == (32, 30, True)
    second = next(one for one in found.answers if one.kind == "template")
    assert second.about == "m mixed without a x1"
    assert second.figure is not None
    assert second.figure.usd_h == pytest.approx(2.0)
    assert [(one.nodes, one.count) for one in second.instead] == [("b x1", 2)]
    less = {one.about: one.figure for one in found.answers if one.kind == "machine"}
    figure = less["one planned a.1 (on_demand) less in here/one"]
    assert figure is not None
    assert figure.usd_h == pytest.approx(1.0)


def test_the_layout_is_stable(highs: Solver) -> None:
    some = view([spec("m", 30.0)], [offer("a", 1.0, 2), offer("b", 2.0, 5), offer("c", 9.0)])
    library = TableLibrary({"m": {"a": 10.0, "b": 12.0, "c": 10.0}})
    told = msgspec.to_builtins(explain(some, library, PLANNER.plan(some, library, highs), endless(highs)))
    price = {"nodes", "domain", "throughput", "usd_h", "per_unit"}
    assert set(told) == {
        "instances",
        "machines",
        "constraints",
        "answers",
        "estimated",
        "solves",
        "seconds",
        "limit_s",
    }
    (first, *_) = told["instances"]
    assert set(first) == {"model", "phase", "unit", "count", "price", "next_best"}
    assert set(first["price"]) == set(first["next_best"]) == price
    assert set(told["machines"][0]) == {
        "machine_type",
        "domain",
        "market",
        "count",
        "usd_h",
        "gpus",
        "gpus_used",
        "serves",
    }
    assert set(told["constraints"][0]) == {"kind", "about", "used", "limit", "unit", "binds"}
    assert set(told["answers"][0]) == {"kind", "about", "what_if", "estimate_usd_h", "figure", "instead"}
    assert set(told["answers"][0]["figure"]) == {
        "how",
        "usd_h",
        "least_usd_h",
        "most_usd_h",
        "told_apart",
        "gap",
        "served",
        "unkept",
    }
    assert set(told["estimated"]) == {"offers", "demand"}


def test_a_held_machine_is_withheld_where_nothing_is_new(highs: Solver) -> None:
    some = view([spec("m", 10.0)], [offer("b", 5.0)], [held("h", "a", 1.0)])
    library = TableLibrary({"m": {"a": 10.0, "b": 10.0}})
    plan = PLANNER.plan(some, library, highs)
    found = explain(some, library, plan, endless(highs))
    (answer,) = [one for one in found.answers if one.kind == "machine"]
    assert answer.about == "one held a.1 (on_demand) less in here/one"
    assert answer.figure is not None
    assert answer.figure.usd_h == pytest.approx(4.0)


def test_demand_that_cannot_grow_says_what_would_be_lost(highs: Solver) -> None:
    some = view([spec("m", 10.0)], [offer("a", 1.0, 1)])
    plan = PLANNER.plan(some, TableLibrary({"m": {"a": 10.0}}), highs)
    found = explain(some, TableLibrary({"m": {"a": 10.0}}), plan, endless(highs))
    (answer,) = [one for one in found.answers if one.kind == "demand"]
    assert answer.figure is not None
    assert answer.figure.usd_h is None
    (served,) = answer.figure.served
    assert [served.before, served.after] == pytest.approx([1.0, 10 / 11])


def test_scarcity_asks_only_what_would_serve_more_or_less(highs: Solver) -> None:
    some = view([spec("m", 30.0)], [offer("a", 1.0, 1)])
    library = TableLibrary({"m": {"a": 10.0}})
    found = explain(some, library, PLANNER.plan(some, library, highs), endless(highs))
    assert [one.kind for one in found.answers] == ["offer", "machine"]
    more, less = (one.figure for one in found.answers)
    assert more is not None
    assert less is not None
    assert [more.served[0].after, less.served[0].after] == pytest.approx([2 / 3, 0.0])


class _Clock:
    """A second passes whenever it is read."""

    def __init__(self) -> None:
        self.now = -1.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_when_the_time_is_over_there_are_estimates_only(highs: Solver) -> None:
    some = view([spec("m", 30.0), spec("n", 5.0)], [offer("a", 1.0, 2), offer("b", 2.0, 5)])
    library = TableLibrary({"m": {"a": 10.0, "b": 12.0}, "n": {"a": 4.0, "b": 5.0}})
    plan = PLANNER.plan(some, library, highs)
    solves = Solves(PLANNER, highs, clock=_Clock(), limit_s=9.0)
    found = explain(some, library, plan, solves)
    answered = [one.figure is not None for one in found.answers]
    assert answered == sorted(answered, reverse=True)
    assert 0 < found.solves == sum(answered) < len(answered)
    assert {one.kind for one in found.answers[:4]} == {"offer", "machine", "demand", "template"}
    assert all(one.estimate_usd_h is not None for one in found.answers if one.kind in ("offer", "demand"))


def test_a_plan_that_a_planner_fell_back_to_is_no_answer(highs: Solver) -> None:
    some = view([spec("m", 30.0)], [offer("a", 1.0, 2), offer("b", 2.0, 5)])
    library = TableLibrary({"m": {"a": 10.0, "b": 12.0}})
    plan = PLANNER.plan(some, library, highs)

    class Falling:
        def plan(self, view: View, library: Library, solver: Solver) -> Plan:
            return replace(PLANNER.plan(view, library, solver), certificate=None)

    solves = Solves(Falling(), highs, clock=lambda: 0.0, limit_s=None)
    found = explain(some, library, plan, solves)
    assert found.answers
    assert all(one.figure is None for one in found.answers)
    unproven = explain(some, library, replace(plan, certificate=None), solves)
    figures = [one.figure for one in unproven.answers if one.figure is not None]
    assert len(figures) == len(unproven.answers)
    assert not any(one.told_apart for one in figures if one.usd_h is not None)


def test_each_solve_has_what_is_left_of_the_time() -> None:
    limits: list[float | None] = []

    class Planner:
        def plan(self, view: View, library: object, solver: Solver) -> Plan:
            limits.append(view.options.time_limit_s)
            raise SolverError("fails")

    clock = _Clock()
    solves = Solves(Planner(), None, clock=clock, limit_s=25.0)  # type: ignore[arg-type]
    some = view([spec("m", 1.0)], [])
    library = TableLibrary({})
    assert [solves.plan(some, library) for _ in range(2)] == [None, None]
    clock.now = 15.0
    solves.plan(some, library)
    clock.now = 30.0
    assert solves.over
    solves.plan(some, library)
    assert limits == [20.0, 20.0, 9.0]
    clock.now = 4.0
    solves.plan(some, library, share=0.25)
    assert limits[-1] == 5.0
    assert solves.count == 0


def test_what_needed_a_forbidden_template_is_irreducible_without_it() -> None:
    """a+a was reducible: two of a do as well."""
    ones = [pipeline("m", "mixed", [A], 5.0), pipeline("m", "mixed", [B], 4.0)]
    library = MemoryLibrary([*ones, pipeline("m", "mixed", [A, A], 9.0), pipeline("m", "mixed", [B, B], 8.0)])
    assert library.table("m", "mixed").irreducible.tolist() == [True, True, False, False]
    poorer = Forbidding(library, "m", "mixed", {A: 1})
    table = poorer.table("m", "mixed")
    assert table.throughput.tolist() == [4.0, 9.0, 8.0]
    assert table.irreducible.tolist() == [True, True, False]
    assert [poorer.template("m", "mixed", row).throughput for row in range(3)] == [4.0, 9.0, 8.0]


def test_a_template_of_unknown_nodes_forbids_nothing() -> None:
    library = MemoryLibrary([pipeline("m", "mixed", [A], 5.0)])
    assert Forbidding(library, "m", "mixed", {B: 1}).table("m", "mixed").throughput.tolist() == [5.0]


def test_the_domain_is_named(highs: Solver) -> None:
    some = view([spec("m", 1.0)], [offer("a", 1.0, 1)])
    library = TableLibrary({"m": {"a": 10.0}})
    found = explain(some, library, PLANNER.plan(some, library, highs), endless(highs))
    assert found.instances[0].price.domain == str(HOME)
    assert found.instances[0].next_best is None
    assert found.limit_s is None
    changed = replace(some, models=(spec("m", 0.0),))
    idle = explain(changed, library, PLANNER.plan(changed, library, highs), endless(highs))
    assert idle.instances == ()
