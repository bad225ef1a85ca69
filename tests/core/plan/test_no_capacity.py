"""A cloud that has nothing more to rent: what is held and runs stays, and the rest is planned around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.tables import TableLibrary, held, offer, spec, template, view
from coral.testing.worlds import World, random_world
from coral.types.hardware import Node, NodeType
from coral.types.plan import RunningInstance

PLANNER = build(CoralOptions())


def test_what_runs_on_held_machines_stays_where_nothing_can_be_had(highs: Solver) -> None:
    machines = [held(f"h{i}", "a", 1.0) for i in range(3)]
    running = [
        RunningInstance(
            id=f"i{i}",
            template=template("m", "a", 10.0),
            domain=machines[i].domain,
            nodes=(Node(machine_id=f"h{i}", node_type=NodeType("a", 1), devices=(0,)),),
        )
        for i in range(3)
    ]
    library = TableLibrary({"m": {"a": 10.0, "b": 10.0}})
    for slices in (True, False):
        some = view([spec("m", 30.0)], [offer("a", 1.0, 0), offer("b", 0.1, 0)], machines, running)
        some = replace(some, options=replace(some.options, slices=slices))
        plan = PLANNER.plan(some, library, highs)
        assert plan.satisfied
        assert [(m.machine_type, m.kept, m.new) for m in plan.machines] == [("a.1", 3, 0)]
        assert [(one.count, one.kept) for one in plan.instances] == [(3, 3)]
        more = PLANNER.plan(replace(some, models=(spec("m", 90.0),)), library, highs)
        assert [(m.kept, m.new) for m in more.machines] == [(3, 0)]
        assert [(one.count, one.kept) for one in more.instances] == [(3, 3)]


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_with_nothing_to_be_had_the_best_of_what_is_held(
    seed: int, slices: bool, highs: Solver, reference: Callable[[World], float | None]
) -> None:
    """Served in part, so that the cheapest that serves these fractions is checked as a demand of its own."""
    options = PlanOptions(slices=slices, gap=0.0, time_limit_s=30.0, couple_phases=False)
    world = random_world(seed, options, sizes=(1, 2), machine_sizes=(1, 2), running=4, domains=1)
    offers = tuple(replace(one, obtainable=0) for one in world.view.offers)
    some = replace(world.view, offers=offers)
    plan = PLANNER.plan(some, world.library, highs)
    assert all(one.new == 0 for one in plan.machines)
    fractions = {
        name: min(one.fraction for one in plan.services if one.model == name)
        for name in {one.model for one in plan.services}
    }
    served = tuple(
        replace(
            spec,
            demand=replace(
                spec.demand, requests_per_s=spec.demand.requests_per_s * fractions[spec.name] * (1 - 1e-6)
            ),
        )
        for spec in some.models
    )
    least = reference(World(view=replace(some, models=served), library=world.library))
    assert least is not None
    assert plan.certificate is not None
    if any(one > 0 for one in fractions.values()):
        assert plan.certificate.cost_usd_h == pytest.approx(least, abs=1e-4)
    if plan.satisfied:
        return
    worst = min(fractions, key=lambda name: fractions[name])
    more = tuple(
        replace(
            spec,
            demand=replace(
                spec.demand, requests_per_s=spec.demand.requests_per_s * fractions[worst] * 1.001 + 1e-6
            ),
        )
        for spec in some.models
    )
    assert reference(World(view=replace(some, models=more), library=world.library)) is None
