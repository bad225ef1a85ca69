"""Baselines on random worlds: plans that hold, replicas that are permitted, costs in their order."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from msgspec.structs import replace

from coral.core.operate.claiming import claim
from coral.core.operate.slots import Wanted, free_slots
from coral.core.plan.planners.cauchy import build as build_cauchy
from coral.core.plan.planners.cauchy_options import CauchyOptions
from coral.core.plan.planners.coral import build as build_coral
from coral.core.plan.planners.helix import build as build_helix
from coral.core.plan.planners.helix_options import HelixOptions
from coral.core.plan.planners.homo import build as build_homo
from coral.core.plan.planners.homo_options import HomoOptions
from coral.core.plan.planners.melange import build as build_melange
from coral.core.plan.planners.melange_options import MelangeOptions
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.worlds import World, random_world
from coral.types.hardware import Machine
from coral.types.plan import Plan, RunningInstance

SEEDS = range(3)
BOTH = list(product((False, True), (False, True)))


def world(seed: int, *, slices: bool, coupled: bool, running: int = 0, scarce: float = 1.0) -> World:
    options = PlanOptions(
        target_utilization=1.0,
        slices=slices,
        couple_phases=coupled,
        gap=1e-2 if running else 0.0,
        time_limit_s=20.0,
    )
    return random_world(
        seed, options, running=running, scarce=scarce, initialization_s=300.0 if running else 0.0
    )


def check(plan: Plan, some: World) -> None:
    """Nothing that is not there is rented or used, and the sums are right."""
    limits = {(o.machine_type.name, o.domain): o.obtainable for o in some.view.offers}
    gpus: dict[tuple[object, str], int] = {}
    for one in plan.machines:
        held = sum(
            m.machine_type.name == one.machine_type and m.domain == one.domain for m in some.view.machines
        )
        assert 0 <= one.kept <= held
        assert 0 <= one.new <= limits.get((one.machine_type, one.domain), 0)
        gpu, size = one.machine_type.split(".")
        gpus[one.domain, gpu] = gpus.get((one.domain, gpu), 0) + (one.kept + one.new) * int(size)
    used: dict[tuple[object, str], int] = {}
    for some_of in plan.instances:
        for kind, count in some_of.template.nodes.items():
            key = (some_of.domain, kind.gpu)
            used[key] = used.get(key, 0) + kind.count * count * some_of.count
    assert all(used[key] <= gpus.get(key, 0) for key in used)
    assert plan.price_usd_h == pytest.approx(sum((m.kept + m.new) * m.price_usd_h for m in plan.machines))
    running = {r.template.id for r in some.view.running}
    assert all(one.kept == 0 or one.template.id in running for one in plan.instances)


def cost(plan: Plan) -> float:
    return plan.price_usd_h + plan.initialization_usd_h


def homo(some: World, solver: Solver, **options: object) -> Plan:
    plan = build_homo(HomoOptions.model_validate(options)).plan(some.view, some.library, solver)
    check(plan, some)
    return plan


def cauchy(some: World, solver: Solver, **options: object) -> Plan:
    plan = build_cauchy(CauchyOptions.model_validate(options)).plan(some.view, some.library, solver)
    check(plan, some)
    return plan


def coral(some: World, solver: Solver) -> Plan:
    return build_coral(CoralOptions()).plan(some.view, some.library, solver)


@pytest.mark.parametrize(("slices", "coupled"), BOTH)
def test_a_plan_of_more_freedom_costs_no_more(highs: Solver, slices: bool, coupled: bool) -> None:
    met = 0
    for seed in SEEDS:
        some = world(seed, slices=slices, coupled=coupled)
        plans = [
            coral(some, highs),
            homo(some, highs, choose="ilp", slices=slices, mix_sizes=True),
            homo(some, highs, choose="ilp", slices=slices),
            homo(some, highs, slices=slices),
        ]
        served = [plan.satisfied for plan in plans]
        assert served == sorted(served, reverse=True)
        costs = [cost(plan) for plan in plans if plan.satisfied]
        assert all(a <= b + 1e-6 for a, b in pairwise(costs)), costs
        met += all(served)
    assert met > 0


@pytest.mark.parametrize(("slices", "coupled"), BOTH)
def test_combos_are_never_better_than_their_best_set(highs: Solver, slices: bool, coupled: bool) -> None:
    met = 0
    for seed in SEEDS:
        some = world(seed, slices=slices, coupled=coupled)
        best = cauchy(some, highs, choose="ilp", slices=slices)
        greedy = cauchy(some, highs, slices=slices)
        assert best.satisfied or not greedy.satisfied
        assert not greedy.satisfied or cost(best) <= cost(greedy) + 1e-6
        if best.certificate is None:
            continue
        assert best.satisfied
        assert best.certificate.bound_usd_h <= cost(best) + 1e-9
        assert best.certificate.cost_usd_h == pytest.approx(cost(best))
        apart = homo(some, highs, choose="ilp", slices=slices)
        assert cost(apart) <= cost(best) + 1e-6  # combos are sets of its replicas
        met += 1
    assert met > 0


@pytest.mark.parametrize(("slices", "coupled"), BOTH)
@pytest.mark.parametrize("scarce", [1.0, 4.0])
def test_with_what_runs_and_is_held(highs: Solver, slices: bool, coupled: bool, scarce: float) -> None:
    kept = 0
    for seed in SEEDS:
        some = world(seed, slices=slices, coupled=coupled, running=4, scarce=scarce)
        for choose in ("greedy", "ilp"):
            plans = [
                homo(some, highs, choose=choose, slices=slices),
                cauchy(some, highs, choose=choose, slices=slices),
            ]
            kept += sum(one.kept for plan in plans for one in plan.instances)
    assert kept > 0


@pytest.mark.parametrize(("slices", "coupled"), BOTH)
@pytest.mark.parametrize("scarce", [1.0, 4.0])
def test_melange_and_helix_hold_too(highs: Solver, slices: bool, coupled: bool, scarce: float) -> None:
    met = 0
    for seed in SEEDS:
        some = world(seed, slices=slices, coupled=coupled, running=3, scarce=scarce)
        for planner in (
            build_melange(MelangeOptions(slices=slices)),
            build_helix(HelixOptions(slices=slices)),
        ):
            plan = planner.plan(some.view, some.library, highs)
            check(plan, some)
            met += plan.satisfied
    assert met > 0 or scarce > 1


def test_replicas_are_what_is_permitted(highs: Solver) -> None:
    seen: set[tuple[bool, bool]] = set()
    for seed in SEEDS:
        some = world(seed, slices=True, coupled=False)
        for multi_node, mix_sizes in BOTH:
            for choose in ("greedy", "ilp"):
                may = {"multi_node": multi_node, "mix_sizes": mix_sizes, "slices": True}
                plan = homo(some, highs, choose=choose, **may)
                for one in plan.instances:
                    nodes = one.template.nodes
                    assert len({kind.gpu for kind in nodes}) == 1
                    assert mix_sizes or len(nodes) == 1
                    assert multi_node or sum(nodes.values()) == 1
                    seen.add((sum(nodes.values()) > 1, len(nodes) > 1))
    assert seen == {(False, False), (True, False), (True, True)}


class TestPipelinesInAMachine:
    def test_they_sit_on_one_machine_with_their_real_placement(self, highs: Solver) -> None:
        found = 0
        for seed in range(12):
            some = world(seed, slices=False, coupled=False)
            plan = homo(
                some, highs, choose="ilp", multi_node=False, pipelines_in_machine=True, mix_sizes=True
            )
            room: dict[tuple[object, str], int] = {}
            for machines in plan.machines:
                name = (machines.domain, machines.machine_type)
                room[name] = machines.kept + machines.new
            for one in plan.instances:
                nodes = one.template.nodes
                gpus = sum(kind.count * n for kind, n in nodes.items())
                machine = (one.domain, f"{next(iter(nodes)).gpu}.{gpus}")
                room[machine] -= one.count
                found += sum(nodes.values()) > 1
            assert all(left == 0 for left in room.values())
        assert found > 0

    @pytest.mark.parametrize("slices", [False, True])
    def test_what_runs_so_is_kept(self, highs: Solver, slices: bool) -> None:
        found = 0
        for seed in range(12):
            some = world(seed, slices=slices, coupled=False)
            options = {
                "choose": "ilp",
                "multi_node": False,
                "pipelines_in_machine": True,
                "slices": slices,
                "mix_sizes": True,
            }
            plan = homo(some, highs, **options)
            if not plan.satisfied or not any(sum(i.template.nodes.values()) > 1 for i in plan.instances):
                continue
            again = homo(running(plan, some), highs, **options)
            assert cost(again) == pytest.approx(plan.price_usd_h)
            assert sum(i.kept for i in again.instances) == sum(i.count for i in plan.instances)
            found += 1
        assert found > 0


def running(plan: Plan, some: World) -> World:
    """The world after the plan was carried out, every instance with its devices, and all else sold out."""
    types = {(o.machine_type.name, o.domain): o for o in some.view.offers}
    machines = [
        Machine(
            id=f"{one.domain}-{one.machine_type}-{n}",
            machine_type=types[one.machine_type, one.domain].machine_type,
            domain=one.domain,
            price_usd_h=one.price_usd_h,
        )
        for one in plan.machines
        for n in range(one.kept + one.new)
    ]
    wanted = [one for one in plan.instances for _ in range(one.count)]
    claims = claim(
        [Wanted(placement=one.template.placement, domain=one.domain) for one in wanted],
        free_slots(machines, ()),
    )
    live = []
    for number, (one, taken) in enumerate(zip(wanted, claims, strict=True)):
        assert taken is not None
        live.append(
            RunningInstance(id=f"i{number}", template=one.template, domain=one.domain, nodes=taken.nodes)
        )
    return World(
        view=replace(
            some.view,
            machines=tuple(machines),
            running=tuple(live),
            offers=tuple(replace(o, obtainable=0) for o in some.view.offers),
            models=tuple(replace(m, initialization_s=300.0) for m in some.view.models),
        ),
        library=some.library,
    )
