from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from coral.core.plan.explain.mends import mends
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.what_if import what_if
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import Library, PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.tables import TableLibrary, offer, spec, view
from coral.testing.worlds import World, random_world

PLANNER = build(CoralOptions())
KEY = 'offers."here/one:{}.1:on_demand".obtainable={}'


def found(
    some: View, library: Library, solver: Solver, **more: object
) -> list[tuple[str, tuple[str, ...], float]]:
    solves = Solves(PLANNER, solver, clock=lambda: 0.0, limit_s=None)
    plan = PLANNER.plan(some, library, solver)
    told = mends(some, library, plan, solves, **more)  # type: ignore[arg-type]
    return [(one.kind, one.what_if, round(one.cost_usd_h, 4)) for one in told]


def test_a_plan_that_serves_all_needs_no_mend(highs: Solver) -> None:
    assert found(view([spec("m", 10.0)], [offer("a", 1.0, 1)]), TableLibrary({"m": {"a": 10.0}}), highs) == []


def test_the_least_supply_and_the_most_demand(highs: Solver) -> None:
    """40 requests/s: 10 of them on `a`; of `b` (1 USD/h for 5) or `c` (1.5 for 10) more would do."""
    offers = [offer("a", 1.0, 1), offer("b", 1.0, 0), offer("c", 1.5, 1)]
    some = view([spec("m", 40.0)], offers)
    library = TableLibrary({"m": {"a": 10.0, "b": 5.0, "c": 10.0}})
    assert found(some, library, highs) == [
        ("supply", (KEY.format("a", 3),), 4.5),
        ("demand", ('models."m".demand=20',), 2.5),
    ]


def test_what_need_not_survive_any_more(highs: Solver) -> None:
    """One zone with a machine of use: no plan survives its loss, and the other wants nothing but that."""
    some = view([replace(spec("m", 5.0), survive_zone=0.5)], [offer("a", 1.0, 2)])
    library = TableLibrary({"m": {"a": 10.0}})
    assert found(some, library, highs) == [("promise", ('models."m".survive_zone=0',), 1.0)]


def test_all_may_be_on_spot_machines(highs: Solver) -> None:
    offers = [replace(offer("a", 1.0, 4), market="spot", preemption_per_h=0.1)]
    some = view([spec("m", 10.0)], offers)
    some = replace(some, options=replace(some.options, spot_share=0.5))
    told = found(some, TableLibrary({"m": {"a": 10.0}}), highs)
    assert ("promise", ("plan.spot_share=1",)) in [one[:2] for one in told]


def test_where_the_least_is_of_several_offers_each_alone_is_tried(highs: Solver) -> None:
    """Two models that no machine can both serve."""
    some = view(
        [spec("m", 10.0), spec("n", 10.0)], [offer("a", 1.0, 0), offer("b", 2.0, 0), offer("c", 9.0, 1)]
    )
    library = TableLibrary({"m": {"a": 10.0, "c": 10.0}, "n": {"b": 10.0, "c": 10.0}})
    told = found(some, library, highs)
    assert told[0] == ("supply", (KEY.format("a", 1),), 10.0)
    only = view(
        [spec("m", 10.0), spec("n", 10.0)], [offer("a", 1.0, 0), offer("b", 2.0, 0), offer("c", 90.0, 0)]
    )
    told = found(only, library, highs)
    assert told[0] == ("supply", (KEY.format("a", 1), KEY.format("b", 1)), 3.0)
    assert [one[0] for one in told] == ["supply"]  # neither alone, and no model served without the other


def test_one_model_gives_way_to_the_other(highs: Solver) -> None:
    some = view([spec("m", 25.0), spec("n", 5.0)], [offer("a", 1.0, 2)])
    library = TableLibrary({"m": {"a": 10.0}, "n": {"a": 10.0}})
    told = [one for one in found(some, library, highs) if one[0] == "demand"]
    assert told == [("demand", ('models."m".demand=10',), 2.0)]


def test_no_mend_where_nothing_holds_the_model(highs: Solver) -> None:
    some = view([spec("m", 25.0)], [offer("a", 1.0, 2)])
    assert found(some, TableLibrary({"m": {"b": 10.0}}), highs) == [("demand", ('models."m".demand=0',), 0.0)]


def test_a_budget_and_a_limit_of_gpus_are_raised_to_what_is_needed(highs: Solver) -> None:
    some = view([spec("m", 25.0)], [offer("a", 1.25, 9)])
    library = TableLibrary({"m": {"a": 10.0}})
    poor = replace(some, options=replace(some.options, budget_usd_h=2.5))
    told = found(poor, library, highs)
    assert told[0] == ("limit", ("plan.budget=3.75",), 3.75)
    assert ("demand", ('models."m".demand=20',), 2.5) in told
    few = replace(some, models=(replace(some.models[0], max_gpus=1),))
    assert found(few, library, highs)[0] == ("limit", ('models."m".max_gpus=3',), 3.75)
    dear = replace(some, models=(replace(some.models[0], max_cost_usd_h=2.0),))
    assert found(dear, library, highs)[0] == ("limit", ('models."m".max_cost=null',), 3.75)


def test_what_does_not_survive_a_loss_is_mended_too(highs: Solver) -> None:
    some = view([replace(spec("m", 10.0), survive_machine=1.0)], [offer("a", 1.0, 1)])
    assert found(some, TableLibrary({"m": {"a": 10.0}}), highs) == [
        ("supply", (KEY.format("a", 2),), 2.0),
        ("promise", ('models."m".survive_machine=0',), 1.0),
    ]


@pytest.mark.parametrize(("needed", "told"), [(2.4, "2.5s"), (1e7, "10000000s"), (3e6, "5000000s")])
def test_an_slo_is_loosened_as_far_as_it_must(highs: Solver, needed: float, told: str) -> None:
    """No template below `needed` seconds of prefill; the SLO is 1 s."""
    some = view([spec("m", 10.0)], [offer("a", 1.0, 2)])

    def rebuilt(changed: View) -> Library:
        slow = changed.models[0].slo.prefill_s < needed
        return TableLibrary({"m": {"a": 0.0 if slow else 10.0}})

    if needed < 3:  # on the near ladder 3 follows 2
        told = "3s"
    mended = found(some, rebuilt(some), highs, rebuilt=rebuilt)
    assert ("slo", (f'models."m".slo.prefill={told}',), 1.0) in mended
    assert not any("decode" in change for _, what_ifs, _ in mended for change in what_ifs)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_each_mend_makes_the_demand_servable_and_less_does_not(
    seed: int, highs: Solver, reference: Callable[[World], float | None]
) -> None:
    options = PlanOptions(gap=0.0, time_limit_s=30.0)
    world = random_world(
        seed, options, sizes=(1, 2), machine_sizes=(1, 2), domains=1, scarce=6.0, initialization_s=300.0
    )
    assert reference(world) is None
    told = found(world.view, world.library, highs)
    assert told
    for kind, changes, cost in told:
        changed = what_if(world.view, changes).view
        assert reference(World(view=changed, library=world.library)) == pytest.approx(cost, abs=1e-4)
        if kind == "supply":
            for one, before in zip(changed.offers, world.view.offers, strict=True):
                if one.obtainable > before.obtainable:
                    fewer = replace(one, obtainable=one.obtainable - 1)
                    offers = tuple(fewer if o is one else o for o in changed.offers)
                    assert (
                        reference(World(view=replace(changed, offers=offers), library=world.library)) is None
                    )
        elif kind == "demand":
            name = changes[0].split('"')[1]
            more = tuple(
                replace(m, demand=replace(m.demand, requests_per_s=m.demand.requests_per_s * 1.002 + 1e-3))
                if m.name == name
                else m
                for m in changed.models
            )
            assert reference(World(view=replace(changed, models=more), library=world.library)) is None
