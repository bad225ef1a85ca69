"""The allocation against a program with one bin per machine, on random small worlds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.worlds import World, random_world
from coral.types.plan import Plan

Reference = Callable[[World], float | None]


def options(*, slices: bool, coupled: bool, utilization: float = 1.0) -> PlanOptions:
    return PlanOptions(
        target_utilization=utilization,
        slices=slices,
        couple_phases=coupled,
        gap=0.0,
        time_limit_s=30.0,
        amortize_s=3600.0,
    )


def planned(world: World, solver: Solver, **planner: object) -> Plan:
    return build(CoralOptions.model_validate(planner)).plan(world.view, world.library, solver)


def agrees(world: World, solver: Solver, reference: Reference, **planner: object) -> bool:
    """Whether the demand can be met; the costs are compared where it can."""
    best = reference(world)
    plan = planned(world, solver, **planner)
    assert plan.satisfied == (best is not None), plan.notes
    if best is None:
        return False
    assert plan.certificate is not None
    assert plan.certificate.cost_usd_h == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert plan.certificate.cost_usd_h == pytest.approx(plan.price_usd_h + plan.initialization_usd_h)
    assert plan.certificate.bound_usd_h <= best + 1e-6 * max(1.0, best)
    assert plan.certificate.gap <= 1e-6
    return True


@pytest.mark.parametrize(("slices", "coupled"), list(product((False, True), (False, True))))
def test_equal_to_one_bin_per_machine(
    highs: Solver, reference: Reference, slices: bool, coupled: bool
) -> None:
    given = options(slices=slices, coupled=coupled, utilization=0.8)
    met = [agrees(random_world(seed, given), highs, reference) for seed in range(12)]
    assert any(met)


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (1, 3), (1, 2, 3, 6)])
def test_machines_of_any_size_are_sliced_exactly(
    highs: Solver, reference: Reference, sizes: tuple[int, ...]
) -> None:
    """Nodes that are no power of two take whole machines; reference worlds have none of those sliced."""
    given = options(slices=True, coupled=False)
    met = [
        agrees(random_world(seed, given, sizes=(1, 2), machine_sizes=sizes, most=2), highs, reference)
        for seed in range(8)
    ]
    assert any(met)


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_running_instances_and_initialization(
    highs: Solver, reference: Reference, slices: bool, share: float
) -> None:
    given = options(slices=slices, coupled=False)
    met = []
    kept = 0
    for seed in range(10):
        world = random_world(seed, given, running=5, initialization_s=share * 3600.0)
        met.append(agrees(world, highs, reference))
        kept += sum(one.kept for one in planned(world, highs).instances)
    assert any(met)
    assert kept > 0


def test_mixed_phases_count_requests(highs: Solver, reference: Reference) -> None:
    given = options(slices=True, coupled=True)
    assert any(agrees(random_world(seed, given, mixed=True), highs, reference) for seed in range(8))


@pytest.mark.parametrize("variant", [{"reductions": False}, {"sift_above": 0}, {"headroom": True}])
def test_variants_agree(highs: Solver, reference: Reference, variant: dict[str, object]) -> None:
    for slices in (False, True):
        given = options(slices=slices, coupled=slices)
        for seed in range(20, 24):
            world = random_world(seed, given, running=3, initialization_s=1800.0)
            agrees(world, highs, reference, **variant)


def test_the_papers_form_agrees(highs: Solver, reference: Reference) -> None:
    given = options(slices=False, coupled=False)
    for seed in range(30, 42):
        world = random_world(seed, given, running=4, initialization_s=1800.0)
        agrees(world, highs, reference, form="paper")
        agrees(world, highs, reference)


def test_free_machines(highs: Solver, reference: Reference) -> None:
    """Prices of 0 anywhere: no division by a price, no reason to move."""
    from msgspec.structs import replace

    for slices in (False, True):
        given = options(slices=slices, coupled=True)
        for seed in range(50, 54):
            world = random_world(seed, given, running=3, initialization_s=1800.0)
            offers = tuple(
                replace(o, price_usd_h=0.0 if i % 2 else o.price_usd_h)
                for i, o in enumerate(world.view.offers)
            )
            machines = tuple(replace(m, price_usd_h=0.0) for m in world.view.machines)
            view = replace(world.view, offers=offers, machines=machines)
            agrees(World(view=view, library=world.library), highs, reference)
