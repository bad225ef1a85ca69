"""What the options of a plan ask of every planner, also of those that know nothing of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coral.core.plan.planners.cauchy import build as build_cauchy
from coral.core.plan.planners.cauchy_options import CauchyOptions
from coral.core.plan.planners.helix import build as build_helix
from coral.core.plan.planners.helix_options import HelixOptions
from coral.core.plan.planners.homo import build as build_homo
from coral.core.plan.planners.homo_options import HomoOptions
from coral.core.plan.planners.melange import build as build_melange
from coral.core.plan.planners.melange_options import MelangeOptions
from coral.hookspecs.planner import Planner, PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.worlds import MemoryLibrary, World, random_world
from coral.types.plan import Plan

PLANNERS: dict[str, Planner] = {
    "homo": build_homo(HomoOptions(slices=True)),
    "homo-ilp": build_homo(HomoOptions(choose="ilp", slices=True)),
    "cauchy": build_cauchy(CauchyOptions(slices=True)),
    "cauchy-ilp": build_cauchy(CauchyOptions(choose="ilp", slices=True)),
    "melange": build_melange(MelangeOptions(slices=True)),
    "helix": build_helix(HelixOptions(slices=True)),
}
SEEDS = range(2)

every = pytest.mark.parametrize("name", list(PLANNERS))


def world(seed: int, **options: object) -> World:
    given = PlanOptions(target_utilization=1.0, gap=1e-2, time_limit_s=5.0, **options)  # type: ignore[arg-type]
    return random_world(seed, given, running=2)


def planned(name: str, some: World, solver: Solver, **changes: object) -> Plan:
    view: View = replace(some.view, **changes)
    return PLANNERS[name].plan(view, some.library, solver)


@every
@pytest.mark.parametrize("slices", [False, True])
def test_a_budget_is_kept(highs: Solver, name: str, slices: bool) -> None:
    spent = 0.0
    for seed in SEEDS:
        free = planned(name, world(seed, slices=slices), highs)
        budget = 0.6 * free.price_usd_h
        plan = planned(name, world(seed, slices=slices, budget_usd_h=budget), highs)
        assert plan.price_usd_h <= budget + 1e-6
        assert not any("budget" in line for line in plan.unkept)
        spent += plan.price_usd_h
    assert spent > 0


@every
def test_caps_of_a_model_are_kept(highs: Solver, name: str) -> None:
    for seed in SEEDS:
        some = world(seed)
        models = tuple(replace(one, max_gpus=2) for one in some.view.models)
        plan = planned(name, some, highs, models=models)
        for model in models:
            taken = sum(
                kind.count * n * one.count
                for one in plan.instances
                if one.template.model == model.name
                for kind, n in one.template.nodes.items()
            )
            assert taken <= 2


@every
def test_spot_machines_that_are_preempted_are_counted_for_less(highs: Solver, name: str) -> None:
    used = 0
    for seed in SEEDS:
        some = world(seed, slices=False)
        spot = tuple(
            replace(one, market="spot", price_usd_h=one.price_usd_h * 0.3, preemption_per_h=0.5)
            for one in some.view.offers
        )
        models = tuple(replace(one, initialization_s=600.0) for one in some.view.models)
        plan = planned(name, some, highs, models=models, offers=(*some.view.offers, *spot))
        used += sum(one.new for one in plan.machines if one.market == "spot")
        for service in plan.services:
            full = sum(
                one.count * one.template.throughput
                for one in plan.instances
                if (one.template.model, one.template.phase) == (service.model, service.phase)
            )
            assert service.capacity <= full + 1e-6
    assert used > 0


@every
def test_models_that_may_be_served_either_way(highs: Solver, name: str) -> None:
    served = 0.0
    for seed in SEEDS:
        some, mixed = world(seed), random_world(seed, PlanOptions(), mixed=True)
        both = [
            one for library in (some, mixed) for kind in library.library.templates.values() for one in kind
        ]
        models = tuple(replace(one, phases=("prefill", "decode", "mixed")) for one in some.view.models)
        view = replace(some.view, models=models, running=(), machines=())
        plan = PLANNERS[name].plan(view, MemoryLibrary(both), highs)
        phases = {one.template.phase for one in plan.instances}
        if name == "melange":
            assert phases <= {"mixed"}
        elif name != "homo-ilp":
            assert "mixed" not in phases
        served += sum(one.fraction for one in plan.services)
    assert served > 0


@pytest.mark.parametrize("name", ["homo", "cauchy", "helix"])
def test_planners_without_a_program_say_what_they_do_not_keep(highs: Solver, name: str) -> None:
    some = world(0)
    models = tuple(replace(one, survive_machine=1.0) for one in some.view.models)
    plan = planned(name, some, highs, models=models)
    assert plan.unkept
    assert set(plan.unkept) <= set(plan.notes)
