"""With slices: what survives the loss of any one machine, by losing each in turn in packings of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.solver import Solver
from coral.testing.worlds import MemoryLibrary, World, model, pipeline
from coral.types.hardware import Domain, MachineType, NodeType, Offer
from coral.types.model import Phase
from coral.types.plan import Plan
from tests.core.plan.asked import asked_world
from tests.core.plan.plain import PER_REQUEST

Packed = list[tuple[int, list[int]]]
"""Machines: GPUs, and the instances with a node there."""
Running = tuple[str, Phase, Domain, float]
"""Model, phase, domain, throughput."""


def packings(plan: Plan, world: World, seeds: range) -> Iterator[tuple[Packed, list[Running]]]:
    """The plan's nodes put on its machines at random, several times."""
    kinds = {(o.machine_type.name, o.domain): o.machine_type for o in world.view.offers}
    kinds |= {(m.machine_type.name, m.domain): m.machine_type for m in world.view.machines}
    instances: list[Running] = []
    nodes = []
    for one in plan.instances:
        for _ in range(one.count):
            for kind, count in one.template.nodes.items():
                nodes += [(kind, one.domain, len(instances))] * count
            instances.append((one.template.model, one.template.phase, one.domain, one.template.throughput))
    machines = [
        (kinds[some.machine_type, some.domain], some.domain)
        for some in plan.machines
        for _ in range(some.kept + some.new)
    ]
    for seed in seeds:
        draw = np.random.default_rng(seed)
        free = [kind.gpus for kind, _ in machines]
        holds: list[list[int]] = [[] for _ in machines]
        order = sorted(nodes, key=lambda node: (-node[0].count, draw.random()))
        for kind, domain, instance in order:
            fit = [
                at
                for at, (type_, where) in enumerate(machines)
                if where == domain and type_.gpu == kind.gpu and free[at] >= kind.count
            ]
            assert fit, "largest first always fits"
            at = fit[int(draw.integers(len(fit)))]
            free[at] -= kind.count
            holds[at].append(instance)
        yield [(kind.gpus, holds[at]) for at, (kind, _) in enumerate(machines)], instances


def survives(world: World, instances: list[Running], name: str, lost: set[int]) -> float:
    """Share of a model's demand that is served without the `lost` instances."""
    view = world.view
    (spec,) = (m for m in view.models if m.name == name)
    each = {
        phase: spec.demand.requests_per_s * PER_REQUEST[phase] / view.options.target_utilization
        for phase in spec.phases
    }
    rates: dict[Phase, dict[Domain, float]] = {phase: {} for phase in spec.phases}
    for number, (model_name, phase, domain, throughput) in enumerate(instances):
        if model_name == name and number not in lost:
            rates[phase][domain] = rates[phase].get(domain, 0.0) + throughput / each[phase]
    domains = {domain for some in rates.values() for domain in some}
    apart = [phase for phase in spec.phases if phase != "mixed"]
    total = sum(rates.get("mixed", {}).values())
    if view.options.couple_phases:
        return total + sum(min(rates[p].get(d, 0.0) for p in apart) for d in domains)
    return total + min(sum(rates[p].values()) for p in apart)


@pytest.mark.parametrize("coupled", [False, True])
def test_every_machine_can_be_lost_in_every_packing(highs: Solver, coupled: bool) -> None:
    checked = 0
    for seed in range(6):
        world = asked_world(
            seed, ("machine",), slices=True, coupled=coupled, models=1, sizes=(1, 2, 4), most=4
        )
        plan = build(CoralOptions(sift_above=100_000)).plan(world.view, world.library, highs)
        if not plan.satisfied:
            assert plan.unkept or not all(one.met for one in plan.services)
            continue
        for machines, instances in packings(plan, world, range(20)):
            for _, holds in machines:
                for spec in world.view.models:
                    left = survives(world, instances, spec.name, set(holds))
                    assert left >= spec.survive_machine - 1e-6, (seed, spec.name)
                    checked += 1
    assert checked > 50


ONE, FOUR = MachineType(name="a.1", gpu="a", gpus=1), MachineType(name="a.4", gpu="a", gpus=4)
PLACE = Domain(cloud="c", region="r")


def planned(solver: Solver, survive: float, *, slices: bool = True, limit: int = 9) -> Plan:
    """1 request/s for each GPU; machines of four are cheaper by the GPU. 2 requests/s are asked for."""
    library = MemoryLibrary([pipeline("m", "mixed", [NodeType("a", 1)], 1.0)])
    offers = tuple(
        Offer(machine_type=kind, domain=PLACE, price_usd_h=price, obtainable=limit)
        for kind, price in ((ONE, 1.0), (FOUR, 1.6))
    )
    spec = replace(model("m", 1.6, ("mixed",)), survive_machine=survive)
    world = asked_world(0, (), slices=slices, coupled=True)
    view = replace(world.view, models=(spec,), offers=offers, machines=(), running=())
    return build(CoralOptions()).plan(view, library, solver)


def bought(plan: Plan) -> dict[str, int]:
    return {some.machine_type: some.new for some in plan.machines}


def test_by_hand(highs: Solver) -> None:
    """One machine of four is cheapest; when it may be lost, so many GPUs must be elsewhere."""
    assert bought(planned(highs, 0.0)) == {"a.4": 1}
    assert bought(planned(highs, 0.5)) == {"a.1": 2}
    assert bought(planned(highs, 1.0)) == {"a.1": 3}
    assert bought(planned(highs, 1.0, limit=2)) == {"a.4": 2}
    assert planned(highs, 1.0, limit=2).satisfied


def test_what_cannot_survive_is_said(highs: Solver) -> None:
    plan = planned(highs, 1.0, limit=1)
    assert not plan.satisfied
    assert all(one.met for one in plan.services)
    assert plan.unkept == (
        "m: 50% of the demand can be served when a machine is lost (a ×4 in c/r), 100% is asked for",
    )
    assert plan.unkept[0] in plan.notes


def test_the_worst_packing_is_counted(highs: Solver) -> None:
    """Against every choice of nodes for a machine: what is taken along is at least as much."""
    from coral.core.plan.losses import MachineKind
    from coral.core.plan.problem import state
    from coral.core.plan.shortfall import taken_along

    for seed in range(8):
        world = asked_world(seed, (), slices=True, coupled=False, models=1, sizes=(1, 2), running=0)
        problem = state(world.view, world.library)
        draw = np.random.default_rng(seed)
        columns = problem.columns
        service = 0
        mine = np.flatnonzero((columns.service == service) & (columns.domain == 0))
        if not mine.size:
            continue
        counts = np.zeros(len(columns))
        counts[draw.choice(mine, size=min(3, len(mine)), replace=False)] = 1
        kind = MachineKind(site=0, gpu="a", gpus=2)
        nodes = [
            (node.count, line)
            for line in np.flatnonzero(counts)
            for at, node in enumerate(problem.node_types)
            for _ in range(int(columns.usage[line, at]))
            if node.gpu == "a" and node.count <= kind.gpus
        ]
        worst = 0.0
        for size in range(len(nodes) + 1):
            for some in combinations(nodes, size):
                if sum(count for count, _ in some) <= kind.gpus:
                    worst = max(worst, sum(columns.throughput[line] for line in {line for _, line in some}))
        found = taken_along(problem, counts, kind, service)
        assert found >= worst - 1e-9
