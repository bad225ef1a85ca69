"""Options that not all of the demand, or not all of what is asked beside it, can be had with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.greedy import greedy_plan
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.planner import NoSolver
from coral.testing.tables import AWAY, HOME, TableLibrary, held, offer, spec, template, view
from coral.testing.worlds import World, random_world
from coral.types.hardware import Domain, Market, Offer
from coral.types.model import ModelSpec
from coral.types.placement import Template
from coral.types.plan import Plan, RunningInstance
from tests.core.plan.asked import Asked, asked_world
from tests.core.plan.plain import PER_REQUEST, least_cost

HARD = PlanOptions(target_utilization=1.0, slices=False, couple_phases=False, gap=0.0)
ONE = TableLibrary({"a": {"small": 1.0}, "b": {"small": 1.0}})


def planned(world: View, library: TableLibrary, solver: Solver) -> Plan:
    return build(CoralOptions()).plan(world, library, solver)


def served(plan: Plan) -> dict[str, float]:
    return {s.model: min(o.fraction for o in plan.services if o.model == s.model) for s in plan.services}


def with_budget(world: View, budget: float) -> View:
    return replace(world, options=replace(world.options, budget_usd_h=budget))


def enumerated(world: World) -> tuple[list[float], float]:
    """Every allocation of single-GPU machines in one domain within budget, caps and floors: the fractions,
    the least first, made great, then the least cost."""
    specs, limits = world.view.models, {o.machine_type.gpu: o for o in world.view.offers}
    columns = [(key, one) for key, some in world.library.templates.items() for one in some]
    found = []
    for counts in product(range(4), repeat=len(columns)):
        used: dict[str, int] = {}
        gpus = dict.fromkeys([m.name for m in specs], 0)
        costs = dict.fromkeys([m.name for m in specs], 0.0)
        for ((name, _), one), n in zip(columns, counts, strict=True):
            for kind, k in one.nodes.items():
                used[kind.gpu] = used.get(kind.gpu, 0) + n * k
                gpus[name] += n * k
                costs[name] += n * k * limits[kind.gpu].price_usd_h
        cost = sum(costs.values())
        budget = world.view.options.budget_usd_h
        if any(n > limits[gpu].obtainable for gpu, n in used.items()) or (
            budget is not None and cost > budget
        ):
            continue
        if any(m.max_gpus is not None and gpus[m.name] > m.max_gpus for m in specs):
            continue
        if any(m.max_cost_usd_h is not None and costs[m.name] > m.max_cost_usd_h for m in specs):
            continue
        fractions = [_fraction(m, columns, counts) for m in specs]
        if all(f >= m.floor - 1e-9 for f, m in zip(fractions, specs, strict=True)):
            found.append((sorted(round(f, 6) for f in fractions), -cost))
    ordered, cost = max(found)
    return ordered, -cost


def _fraction(
    model: ModelSpec, columns: Sequence[tuple[tuple[str, str], Template]], counts: Sequence[int]
) -> float:
    rates = []
    for phase in model.phases:
        both = zip(columns, counts, strict=True)
        able = sum(n * one.throughput for (key, one), n in both if key == (model.name, phase))
        rates.append(able / (model.demand.requests_per_s * PER_REQUEST[phase]))
    return min([1.0, *rates])


def small_world(seed: int) -> World:
    world = random_world(seed, HARD, sizes=(1,), machine_sizes=(1,), domains=1, most=3, models=2)
    templates = {key: some[:2] for key, some in world.library.templates.items()}
    offers = tuple(replace(o, obtainable=max(2, o.obtainable)) for o in world.view.offers)
    library = type(world.library)(one for some in templates.values() for one in some)
    return World(view=replace(world.view, offers=offers), library=library)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("asked", ["budget", "gpus", "cost", "floor"])
def test_leximin_within_limits_equals_enumeration(highs: Solver, seed: int, asked: str) -> None:
    world = small_world(seed)
    cost = build(CoralOptions()).plan(world.view, world.library, highs).price_usd_h
    first, *others = world.view.models
    options = world.view.options
    if asked == "budget":
        options = replace(options, budget_usd_h=0.6 * cost)
    elif asked == "gpus":
        first = replace(first, max_gpus=2)
    elif asked == "cost":
        first = replace(first, max_cost_usd_h=0.3 * cost)
    else:
        options = replace(options, budget_usd_h=0.6 * cost)
        first = replace(first, floor=0.7)
    world = World(view=replace(world.view, options=options, models=(first, *others)), library=world.library)
    try:
        ordered, least = enumerated(world)
    except ValueError:  # no allocation keeps the floor
        plan = build(CoralOptions()).plan(world.view, world.library, highs)
        assert any("floor of 70% cannot be kept" in one for one in plan.unkept)
        return
    plan = build(CoralOptions()).plan(world.view, world.library, highs)
    assert sorted(served(plan).values()) == pytest.approx(ordered, abs=1e-5)
    assert plan.price_usd_h == pytest.approx(least, abs=1e-6)
    assert plan.unkept == ()


def test_under_a_budget_demand_is_served_as_far_as_it_goes(highs: Solver) -> None:
    world = with_budget(view([spec("a", 4.0), spec("b", 4.0)], [offer("small", 1.0, 20)]), 6.5)
    plan = planned(world, ONE, highs)
    assert plan.price_usd_h == pytest.approx(6.0)
    assert served(plan) == pytest.approx({"a": 0.75, "b": 0.75})
    assert plan.unkept == ()
    assert plan.notes[-1] == "all of it could be served for 8 USD/h without the budget of 6.5 USD/h"


def test_a_floor_comes_before_equal_shares(highs: Solver) -> None:
    low, high = spec("a", 4.0), replace(spec("b", 4.0), floor=1.0)
    plan = planned(view([low, high], [offer("small", 1.0, 6)]), ONE, highs)
    assert served(plan) == pytest.approx({"a": 0.5, "b": 1.0})
    assert plan.unkept == ()


def test_floors_that_cannot_all_be_kept_are_said(highs: Solver) -> None:
    models = [replace(spec(name, 4.0), floor=0.9) for name in ("a", "b")]
    plan = planned(view(models, [offer("small", 1.0, 6)]), ONE, highs)
    assert served(plan) == pytest.approx({"a": 0.75, "b": 0.75})
    assert plan.unkept == (
        "a: the floor of 90% cannot be kept: 75% is served",
        "b: the floor of 90% cannot be kept: 75% is served",
    )
    assert not plan.satisfied


def test_zones_in_one_place_are_said(highs: Solver) -> None:
    """All is served, and the plan says that a zone's loss takes all of it."""
    world = view([replace(spec("a", 2.0), survive_zone=0.5)], [offer("small", 1.0, 9)])
    plan = planned(world, ONE, highs)
    assert served(plan) == {"a": 1.0}
    assert plan.unkept == (
        "a: 0% of the demand can be served when a zone is lost (here/one), 50% is asked for; "
        "there are machines in one zone only",
    )
    assert not plan.satisfied


def test_what_survives_is_made_great_where_it_cannot_be_all(highs: Solver) -> None:
    """Demand first; of the cheaper zone as much as leaves the most when either is lost."""
    world = view(
        [replace(spec("a", 4.0), survive_zone=0.5)],
        [offer("small", 1.0, 9), offer("small", 3.0, 1, domain=AWAY)],
    )
    plan = planned(world, ONE, highs)
    assert served(plan) == {"a": 1.0}
    assert {m.domain: m.new for m in plan.machines} == {HOME: 3, AWAY: 1}
    assert "a: 25% of the demand can be served when a zone is lost (here/one)" in plan.unkept[0]


def test_zones_survive_where_there_are_two(highs: Solver) -> None:
    world = view(
        [replace(spec("a", 4.0), survive_zone=0.5)],
        [offer("small", 1.0, 9), offer("small", 3.0, 9, domain=AWAY)],
    )
    plan = planned(world, ONE, highs)
    assert plan.satisfied
    assert {m.domain: m.new for m in plan.machines} == {HOME: 2, AWAY: 2}


def test_a_region_without_a_zone_may_be_any_of_its_zones() -> None:
    from coral.core.plan.survival import zones

    region = Domain(cloud="c", region="r")
    first, second = replace(region, zone="z1"), replace(region, zone="z2")
    other = Domain(cloud="c", region="q")
    assert zones([region, first, second, other]) == (
        frozenset({other}),
        frozenset({first, region}),
        frozenset({second, region}),
    )
    assert zones([region, other]) == (frozenset({other}), frozenset({region}))


def spot(price: float, *, per_h: float = 0.0, obtainable: int = 9) -> Offer:
    return replace(offer("small", price, obtainable), market="spot", preemption_per_h=per_h)


def test_spot_machines_serve_their_share_at_most(highs: Solver) -> None:
    for share, expected in ((1.0, (0, 4)), (0.5, (2, 2)), (0.3, (3, 1)), (0.0, (4, 0))):
        world = view([spec("a", 4.0)], [offer("small", 1.0, 9), spot(0.3)])
        world = replace(world, options=replace(world.options, spot_share=share))
        plan = planned(world, ONE, highs)
        markets: dict[Market, int] = {m.market: m.new for m in plan.machines}
        assert (markets.get("on_demand", 0), markets.get("spot", 0)) == expected
        assert plan.satisfied


def test_where_only_spot_machines_can_be_had_they_serve(highs: Solver) -> None:
    world = view([spec("a", 4.0)], [offer("small", 1.0, 1), spot(0.3)])
    plan = planned(replace(world, options=replace(world.options, spot_share=0.5)), ONE, highs)
    assert served(plan) == {"a": 1.0}
    assert plan.unkept == (
        "a: 25% of the demand can be served by on-demand machines alone, 50% is asked for",
    )


def test_preemptions_cost_throughput_and_restarts(highs: Solver) -> None:
    """λ = 1 per hour, R = 0.25 h: an instance is up 1/1.25 of the time and is started anew once an hour."""
    model = spec("a", 4.0, initialization_s=900.0)
    plan = planned(view([model], [spot(0.3, per_h=1.0)]), ONE, highs)
    assert [m.new for m in plan.machines] == [5]
    (service,) = plan.services
    assert service.capacity == pytest.approx(5 / 1.25)
    (some,) = plan.instances
    assert some.market == "spot"
    new, again = 5 * 0.25 * 0.3, 5 * 1.0 * 0.25 * 0.3
    assert plan.initialization_usd_h == pytest.approx(new + again)
    # lost every minute of an hour: dearer than machines that stay
    plan = planned(view([model], [offer("small", 1.0, 9), spot(0.3, per_h=60.0)]), ONE, highs)
    assert [m.market for m in plan.machines] == ["on_demand"]


@pytest.mark.parametrize("slices", [False, True])
def test_nothing_is_torn_down_where_nothing_more_can_be_had(highs: Solver, slices: bool) -> None:
    """0 obtainable, with every option that what is held can keep."""
    library = TableLibrary({"a": {"small": 1.0}})
    machines = (held("m1", "small", 1.0), replace(held("m2", "small", 0.4), market="spot"))
    away = held("m3", "small", 1.0, domain=AWAY)
    running = tuple(
        RunningInstance(id=f"i{i}", template=template("a", "small", 1.0), domain=domain)
        for i, domain in enumerate((HOME, HOME, AWAY))
    )
    asked = replace(
        spec("a", 3.0, initialization_s=600.0), survive_zone=0.3, survive_machine=0.6, max_gpus=3, floor=1.0
    )
    world = view([asked], [offer("small", 1.0, 0), spot(0.4, obtainable=0)], (*machines, away), running)
    options = replace(world.options, slices=slices, budget_usd_h=2.4, spot_share=0.4)
    plan = planned(replace(world, options=options), library, highs)
    assert plan.satisfied, plan.notes
    assert sorted((m.kept, m.new, m.market) for m in plan.machines) == [
        (1, 0, "on_demand"),
        (1, 0, "on_demand"),
        (1, 0, "spot"),
    ]
    assert sum(one.kept for one in plan.instances) == sum(one.count for one in plan.instances) == 3
    assert plan.initialization_usd_h == 0


def test_counting_keeps_to_limits() -> None:
    """Also where no solver answers."""
    capped = replace(spec("a", 4.0), max_gpus=3)
    world = view([capped, replace(spec("b", 4.0), floor=0.9)], [offer("small", 1.0, 20)])
    plan = greedy_plan(with_budget(world, 5.0), ONE)
    assert plan.price_usd_h <= 5.0
    assert sum(one.count for one in plan.instances if one.template.model == "a") <= 3
    plan = planned(with_budget(world, 5.0), ONE, NoSolver())
    assert plan.price_usd_h <= 5.0
    assert any("floor of 90%" in one for one in plan.unkept)


def test_what_runs_stays_over_a_new_budget_where_the_solver_fails() -> None:
    running = RunningInstance(id="x", template=template("a", "small", 1.0), domain=HOME)
    world = view([spec("a", 1.0)], [offer("small", 1.0)], [held("m1", "small", 1.0)], [running])
    plan = planned(with_budget(world, 0.5), ONE, NoSolver())
    assert [m.kept for m in plan.machines] == [1]
    assert plan.unkept == ("the machines cost 1 USD/h, the budget is 0.5",)
    assert not plan.satisfied


def test_a_machine_that_is_not_to_be_had_is_planned_around(highs: Solver) -> None:
    """What is held stays, and what is lacking comes from elsewhere at once."""
    library = TableLibrary({"a": {"small": 1.0, "big": 4.0}})
    running = RunningInstance(id="x", template=template("a", "small", 1.0), domain=HOME)
    machines = [held("m1", "small", 1.0)]
    for obtainable, expected in ((9, {"small.1": (1, 4)}), (0, {"small.1": (1, 0), "big.1": (0, 1)})):
        offers = [offer("small", 1.0, obtainable), offer("big", 5.0, 9)]
        plan = planned(view([spec("a", 5.0)], offers, machines, [running]), library, highs)
        assert plan.satisfied
        assert {m.machine_type: (m.kept, m.new) for m in plan.machines} == expected


@pytest.mark.parametrize("free", ["all", "some"])
@pytest.mark.parametrize(
    "asked", [(), ("spot", "preemption", "share"), ("zone", "cost", "budget"), ("machine",)]
)
def test_prices_of_nothing_are_prices(highs: Solver, asked: tuple[Asked, ...], free: str) -> None:
    """Owned machines cost 0: no option divides by a price, and the plans are the cheapest still."""
    for seed in range(2):
        world = asked_world(seed, asked, slices=asked != ("machine",), coupled=seed == 0, models=1)
        offers = tuple(
            replace(o, price_usd_h=0.0 if free == "all" or i % 2 else o.price_usd_h)
            for i, o in enumerate(world.view.offers)
        )
        held_now = tuple(replace(m, price_usd_h=0.0) for m in world.view.machines)
        world = World(view=replace(world.view, offers=offers, machines=held_now), library=world.library)
        best = least_cost(world)
        plan = build(CoralOptions()).plan(world.view, world.library, highs)
        assert plan.satisfied == (best is not None), plan.notes
        assert np.isfinite(plan.price_usd_h + plan.initialization_usd_h)
        if best is not None:
            assert plan.price_usd_h + plan.initialization_usd_h == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert free != "all" or plan.price_usd_h == 0
