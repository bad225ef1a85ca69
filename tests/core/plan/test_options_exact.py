"""Each option against a plain formulation of its own, on random small worlds."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.solver import Solver
from coral.testing.worlds import World
from tests.core.plan.asked import Asked, asked_world
from tests.core.plan.plain import least_cost

CAMPAIGN = int(os.environ.get("CORAL_CAMPAIGN", "1"))
"""How many times as many worlds."""

WHOLE: list[Sequence[Asked]] = [
    ("spot", "preemption"),
    ("spot", "share"),
    ("spot", "preemption", "share"),
    ("zone",),
    ("gpus",),
    ("cost",),
    ("budget",),
    ("spot", "preemption", "share", "zone", "gpus", "budget"),
]
MACHINE: list[Sequence[Asked]] = [("machine",), ("machine", "zone", "spot", "preemption")]
"""With slices the rows are safe and not exact: see test_losses."""


def agrees(world: World, solver: Solver) -> bool:
    """Whether all can be kept; the costs are compared where it can."""
    best = least_cost(world)
    plan = build(CoralOptions()).plan(world.view, world.library, solver)
    assert plan.satisfied == (best is not None), plan.notes
    if best is None:
        return False
    assert plan.certificate is not None
    assert plan.certificate.cost_usd_h == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert plan.certificate.bound_usd_h <= best + 1e-6 * max(1.0, best)
    return True


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("asked", WHOLE, ids="-".join)
def test_equal_to_the_plain_formulation(
    highs: Solver, asked: Sequence[Asked], slices: bool, coupled: bool
) -> None:
    for seed in range(2 * CAMPAIGN):
        agrees(asked_world(seed, asked, slices=slices, coupled=coupled), highs)


@pytest.mark.parametrize("asked", [*WHOLE[:-1], *MACHINE], ids="-".join)
def test_what_is_asked_can_be_had_in_some_worlds(highs: Solver, asked: Sequence[Asked]) -> None:
    """Else the tests above would compare nothing."""
    worlds = (asked_world(seed, asked, slices=False, coupled=False) for seed in range(12))
    assert any(least_cost(world) is not None for world in worlds)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("asked", MACHINE, ids="-".join)
def test_loss_of_whole_machines(highs: Solver, asked: Sequence[Asked], coupled: bool) -> None:
    for seed in range(3 * CAMPAIGN):
        agrees(asked_world(seed, asked, slices=False, coupled=coupled, models=1), highs)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("slices", [False, True])
def test_the_plan_chooses_the_phases(highs: Solver, slices: bool, coupled: bool) -> None:
    """Prefill and decode apart, mixed, and some of both all occur."""
    ways = set()
    for seed in range(4 * CAMPAIGN):
        world = asked_world(seed, (), slices=slices, coupled=coupled, choose=True)
        if agrees(world, highs):
            plan = build(CoralOptions()).plan(world.view, world.library, highs)
            for model in world.view.models:
                phases = {one.template.phase for one in plan.instances if one.template.model == model.name}
                ways.add(frozenset(phases))
    assert len(ways) > 1


def test_a_choice_of_phases_with_other_options(highs: Solver) -> None:
    for seed in range(2 * CAMPAIGN):
        for asked in (("spot", "preemption", "share", "zone"), ("machine",)):
            coupled = seed % 2 == 0
            agrees(asked_world(seed, asked, slices=False, coupled=coupled, choose=True, models=1), highs)


def test_a_whole_machine_takes_from_one_way_of_serving_alone(highs: Solver) -> None:
    """Counting the loss of a mixed instance and that of a prefill one at once would cost 2% more here."""
    asked: Sequence[Asked] = ("spot", "share", "machine", "gpus", "budget")
    world = asked_world(
        1000023, asked, slices=False, coupled=True, choose=True, running=0, most=5, domains=1, models=1
    )
    assert agrees(world, highs)
