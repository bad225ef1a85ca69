"""Small cases worked out by enumeration or by hand."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.errors import UsageError
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.worlds import MemoryLibrary, World, model, pipeline, random_world
from coral.types.hardware import Domain, Machine, MachineType, Node, NodeType, Offer
from coral.types.plan import Plan, RunningInstance

PAPER = PlanOptions(target_utilization=1.0, slices=False, couple_phases=False, gap=0.0)
SLICED = PlanOptions(target_utilization=1.0, slices=True, couple_phases=True, gap=0.0)
HOME = Domain(cloud="c", region="r")
EIGHT = MachineType(name="a.8", gpu="a", gpus=8)


def planned(view: View, library: MemoryLibrary, solver: Solver, **options: object) -> Plan:
    return build(CoralOptions.model_validate(options)).plan(view, library, solver)


def enumerated(world: World) -> float | None:
    """The paper's program by trying every ν: cost of nodes and of initialization beyond ν′."""
    view, library = world.view, world.library
    places = sorted({o.domain for o in view.offers})
    columns = [(one, place) for some in library.templates.values() for one in some for place in places]
    prices = {(o.domain, o.machine_type.gpu, o.machine_type.gpus): o.price_usd_h for o in view.offers}
    limits = {(o.domain, o.machine_type.gpu, o.machine_type.gpus): o.obtainable for o in view.offers}
    for machine in view.machines:
        limits[machine.domain, machine.machine_type.gpu, machine.machine_type.gpus] += 1
    runs = [(one.template.id, one.domain) for one in view.running]
    best = None
    for counts in product(range(3), repeat=len(columns)):
        used: dict[tuple[Domain, str, int], int] = {}
        cost = 0.0
        for (one, place), n in zip(columns, counts, strict=True):
            price = 0.0
            for kind, k in one.nodes.items():
                key = (place, kind.gpu, kind.count)
                used[key] = used.get(key, 0) + n * k
                price += k * prices.get(key, 0.0)
            share = view.models[0].initialization_s / view.options.amortize_s
            cost += n * price + share * price * max(0, n - runs.count((one.id, place)))
        if any(n > limits.get(key, 0) for key, n in used.items()):
            continue
        rates = {
            key: sum(
                n * one.throughput
                for (one, _), n in zip(columns, counts, strict=True)
                if (one.model, one.phase) == key
            )
            for key in library.templates
        }
        needs = {
            (m.name, p): m.demand.requests_per_s * {"prefill": 100, "decode": 50}[p]
            for m in view.models
            for p in m.phases
        }
        if all(rates[key] >= need - 1e-9 for key, need in needs.items()) and (best is None or cost < best):
            best = cost
    return best


@pytest.mark.parametrize("form", ["coral", "paper"])
def test_the_papers_program_equals_enumeration(highs: Solver, form: str) -> None:
    met = 0
    for seed in range(10):
        world = random_world(
            seed, PAPER, models=1, sizes=(1, 2), machine_sizes=(1, 2), domains=1, running=2,
            initialization_s=1800.0, scarce=0.6,
        )  # fmt: skip
        templates = [one for some in world.library.templates.values() for one in some[:4]]
        world = World(view=world.view, library=MemoryLibrary(templates))
        known = {one.id for one in templates}
        running = tuple(one for one in world.view.running if one.template.id in known)
        world = World(view=replace(world.view, running=running), library=world.library)
        best = enumerated(world)
        plan = planned(world.view, world.library, highs, form=form)
        if best is None:
            continue
        met += 1
        assert plan.certificate is not None
        assert plan.certificate.cost_usd_h == pytest.approx(best, abs=1e-6)
    assert met >= 4


def test_the_papers_form_refuses_what_it_cannot_say(highs: Solver) -> None:
    world = random_world(1, SLICED)
    with pytest.raises(UsageError, match="whole machines"):
        planned(world.view, world.library, highs, form="paper")


def machine(name: str) -> Machine:
    return Machine(id=name, machine_type=EIGHT, domain=HOME, price_usd_h=8.0)


def test_what_runs_fragments_the_machines_it_sits_on(highs: Solver) -> None:
    """Two held machines with one small node each: an 8-GPU node fits on neither, though 14 GPUs are free.
    Keeping both costs a third machine; giving one instance up (and starting it anew) does not."""
    small = pipeline("m", "mixed", [NodeType("a", 1)], 1.0)
    large = pipeline("m", "mixed", [NodeType("a", 8)], 9.0)
    running = tuple(
        RunningInstance(
            id=f"i{i}",
            template=small,
            domain=HOME,
            nodes=(Node(machine_id=f"h{i}", node_type=NodeType("a", 1), devices=(3,)),),
        )
        for i in range(2)
    )
    offers = (Offer(machine_type=EIGHT, domain=HOME, price_usd_h=8.0, obtainable=5),)
    view = View(
        models=(model("m", 11.0, ("mixed",), initialization_s=360.0),),
        offers=offers,
        machines=(machine("h0"), machine("h1")),
        running=running,
        options=SLICED,
    )
    plan = planned(view, MemoryLibrary([small, large]), highs)
    assert plan.satisfied
    assert [(m.kept, m.new) for m in plan.machines] == [(2, 0)]
    assert {one.template.id: (one.count, one.kept) for one in plan.instances} == {
        large.id: (1, 0),
        small.id: (2, 1),
    }
    assert plan.initialization_usd_h == pytest.approx(0.1 * (8 + 1))


def test_a_running_instance_of_another_slo_is_not_kept(highs: Solver) -> None:
    small = pipeline("m", "mixed", [NodeType("a", 8)], 1.0)
    old = replace(small, slo=replace(small.slo, decode_s=9.0))
    running = (RunningInstance(id="i", template=old, domain=HOME),)
    offers = (Offer(machine_type=EIGHT, domain=HOME, price_usd_h=8.0, obtainable=5),)
    view = View(
        models=(model("m", 1.0, ("mixed",)),),
        offers=offers,
        machines=(machine("h"),),
        running=running,
        options=SLICED,
    )
    plan = planned(view, MemoryLibrary([small]), highs)
    assert [(one.count, one.kept) for one in plan.instances] == [(1, 0)]
    assert [(m.kept, m.new) for m in plan.machines] == [(1, 0)]


@pytest.mark.parametrize("options", [PAPER, SLICED])
def test_the_order_of_offers_and_machines_is_nothing(highs: Solver, options: PlanOptions) -> None:
    for seed in range(4):
        world = random_world(seed, options, running=3, initialization_s=900.0)
        turned = replace(
            world.view,
            offers=world.view.offers[::-1],
            machines=world.view.machines[::-1],
            running=world.view.running[::-1],
        )
        first, again = (planned(view, world.library, highs) for view in (world.view, turned))
        assert (first.machines, first.instances, first.services) == (
            again.machines,
            again.instances,
            again.services,
        )


def test_free_machines_that_are_held_are_used_before_free_ones_that_are_not(highs: Solver) -> None:
    """Prices of 0 charge nothing for moving; still nothing moves."""
    small = pipeline("m", "mixed", [NodeType("a", 8)], 1.0)
    running = (RunningInstance(id="i", template=small, domain=HOME),)
    view = View(
        models=(model("m", 1.0, ("mixed",), initialization_s=600.0),),
        offers=(Offer(machine_type=EIGHT, domain=HOME, price_usd_h=0.0, obtainable=5),),
        machines=(replace(machine("h"), price_usd_h=0.0),),
        running=running,
    )
    for slices in (False, True):
        plan = planned(replace(view, options=replace(SLICED, slices=slices)), MemoryLibrary([small]), highs)
        assert [(m.kept, m.new) for m in plan.machines] == [(1, 0)]
        assert [(one.count, one.kept) for one in plan.instances] == [(1, 1)]


def test_headroom_decides_between_equal_costs(highs: Solver) -> None:
    """Two machine types at one price; the faster one is taken where headroom is asked for."""
    slow = pipeline("m", "mixed", [NodeType("a", 1)], 1.0)
    fast = pipeline("m", "mixed", [NodeType("b", 1)], 1.5)
    offers = tuple(
        Offer(
            machine_type=MachineType(name=f"{gpu}.1", gpu=gpu, gpus=1),
            domain=HOME,
            price_usd_h=1.0,
            obtainable=3,
        )
        for gpu in ("a", "b")
    )
    view = View(models=(model("m", 1.0, ("mixed",)),), offers=offers, options=SLICED)
    plan = planned(view, MemoryLibrary([slow, fast]), highs, headroom=True)
    assert plan.price_usd_h == 1.0
    assert plan.services[0].capacity == pytest.approx(1.5)
