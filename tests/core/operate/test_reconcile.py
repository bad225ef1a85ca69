from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.core.operate.reconcile import (
    Action,
    Bounds,
    DrainInstance,
    EndMachine,
    HeldInstance,
    HeldMachine,
    OfferKey,
    Rent,
    StartInstance,
    settled,
)
from coral.core.operate.reconcile import (
    reconcile as schedule,
)
from coral.core.operate.renting import Supply
from coral.core.operate.slots import Claim
from coral.types.hardware import Domain, Machine, MachineType, Node, NodeType
from coral.types.model import Phase, Slo
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan, PlannedInstances, PlannedMachines

HERE = Domain("local", "here")
PHASES: tuple[Phase, ...] = ("prefill", "decode")


def reconcile(
    plan: Plan,
    machines: Sequence[HeldMachine],
    instances: Sequence[HeldInstance],
    bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
) -> tuple[Action, ...]:
    return schedule(plan, machines, instances, bounds).actions


KIND = MachineType(name="pair", gpu="A", gpus=2)


def template(
    model: str = "m", count: int = 1, layers: int = 4, throughput: float = 1.0, phase: Phase = "mixed"
) -> Template:
    node = StageNode(node_type=NodeType("A", count), throughput=throughput)
    stage = Stage(first_layer=0, end_layer=layers, nodes=(node,))
    return Template(
        id=f"{model}-{phase}-{count}-{layers}-{throughput}",
        model=model,
        phase=phase,
        slo=Slo(prefill_s=1.0, decode_s=0.1),
        placement=Placement(stages=(stage,)),
        throughput=throughput,
    )


def plan(machines: int, *instances: tuple[Template, int]) -> Plan:
    return Plan(
        planner="test",
        machines=(
            PlannedMachines(
                machine_type="pair", domain=HERE, market="on_demand", price_usd_h=1.0, kept=0, new=machines
            ),
        ),
        instances=tuple(PlannedInstances(template=t, domain=HERE, count=n) for t, n in instances),
        services=(),
        price_usd_h=0.0,
        initialization_usd_h=0.0,
        certificate=None,
    )


def machine(id: str, state: MachineState = MachineState.JOINED) -> HeldMachine:
    return HeldMachine(machine=Machine(id=id, machine_type=KIND, domain=HERE, price_usd_h=1.0), state=state)


def instance(
    id: str,
    template: Template,
    on: str,
    devices: tuple[int, ...],
    state: InstanceState = InstanceState.READY,
    load: int = 0,
    holding: bool = True,
) -> HeldInstance:
    node = Node(machine_id=on, node_type=NodeType("A", len(devices)), devices=devices)
    return HeldInstance(
        id=id,
        template=template,
        domain=HERE,
        state=state,
        claim=Claim(stages=((node,),)),
        load=load,
        holding=holding,
    )


def kinds(actions: tuple[Action, ...]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_from_nothing_it_rents_and_starts_nothing_yet() -> None:
    assert kinds(reconcile(plan(2, (template(), 3)), [], [])) == ["Rent", "Rent"]


def test_ordered_machines_count() -> None:
    assert reconcile(plan(1, (template(), 1)), [machine("o", MachineState.ORDERED)], []) == ()


def test_instances_start_when_their_machine_has_joined() -> None:
    actions = reconcile(plan(1, (template(), 2)), [machine("a")], [])
    assert kinds(actions) == ["StartInstance", "StartInstance"]
    taken = [a.claim.nodes[0].devices for a in actions if isinstance(a, StartInstance)]
    assert sorted(taken) == [(0,), (1,)]


def test_what_matches_stays_also_with_refitted_weights() -> None:
    running = [instance("i", template(throughput=1.0), "a", (0,))]
    assert reconcile(plan(1, (template(throughput=1.3), 1)), [machine("a")], running) == ()


def test_start_first_then_drain() -> None:
    old, new = template(layers=4), template(layers=5)
    running = [instance("old", old, "a", (0,))]
    first = reconcile(plan(1, (new, 1)), [machine("a")], running)
    assert kinds(first) == ["StartInstance"]
    loading = [*running, instance("new", new, "a", (1,), InstanceState.LOADING)]
    assert reconcile(plan(1, (new, 1)), [machine("a")], loading) == ()
    ready = [*running, instance("new", new, "a", (1,))]
    assert reconcile(plan(1, (new, 1)), [machine("a")], ready) == (DrainInstance(instance="old"),)


def test_drain_first_where_there_is_no_room_least_loaded_first_one_at_a_time() -> None:
    new = template(count=2)
    running = [instance("x", template(), "a", (0,), load=5), instance("y", template(), "a", (1,), load=1)]
    assert reconcile(plan(1, (new, 1)), [machine("a")], running) == (DrainInstance(instance="y"),)
    draining = [running[0], instance("y", template(), "a", (1,), InstanceState.DRAINING)]
    assert reconcile(plan(1, (new, 1)), [machine("a")], draining) == ()
    gone = [running[0], instance("y", template(), "a", (1,), InstanceState.GONE, holding=False)]
    assert reconcile(plan(1, (new, 1)), [machine("a")], gone) == (DrainInstance(instance="x"),)


def test_with_a_machine_on_the_way_nothing_is_drained_for_room() -> None:
    running = [instance("x", template(), "a", (0,))]
    coming = [machine("a"), machine("o", MachineState.BOOTING)]
    assert reconcile(plan(2, (template(count=2), 1)), coming, running) == ()


def test_unwanted_instances_of_other_models_go_at_once() -> None:
    running = [instance("x", template("other"), "a", (0,))]
    actions = reconcile(plan(1, (template("m"), 1)), [machine("a")], running)
    assert kinds(actions) == ["StartInstance", "DrainInstance"]


def test_a_machine_ends_only_when_nothing_holds_it() -> None:
    machines = [machine("a"), machine("b")]
    running = [instance("x", template("other"), "a", (0,)), instance("y", template("other"), "b", (0,))]
    assert reconcile(plan(0), machines, running) == (
        DrainInstance(instance="x"),
        DrainInstance(instance="y"),
    )
    gone = [
        instance("x", template("other"), "a", (0,), InstanceState.GONE, holding=False),
        instance("y", template("other"), "b", (0,), InstanceState.GONE),
    ]
    assert reconcile(plan(0), machines, gone) == (EndMachine(machine="a"),)


def test_the_idle_machine_is_the_one_to_go() -> None:
    running = [instance("x", template(), "b", (0,))]
    actions = reconcile(plan(1, (template(), 1)), [machine("a"), machine("b")], running)
    assert actions == (EndMachine(machine="a"),)


def test_an_instance_moves_off_a_machine_that_is_to_go_and_is_served_throughout() -> None:
    machines = [machine("a"), machine("b")]
    running = [instance("x", template(), "a", (0,)), instance("y", template(), "b", (0,))]
    first = reconcile(plan(1, (template(), 2)), machines, running)
    assert kinds(first) == ["StartInstance"]
    assert isinstance(first[0], StartInstance)
    assert first[0].claim.machines == ("b",)
    moved = [*running, instance("z", template(), "b", (1,))]
    assert reconcile(plan(1, (template(), 2)), machines, moved) == (DrainInstance(instance="x"),)


def test_a_lost_machine_is_rented_again() -> None:
    actions = reconcile(plan(1, (template(), 1)), [machine("a", MachineState.LOST)], [])
    assert kinds(actions) == ["Rent"]
    assert isinstance(actions[0], Rent)
    assert actions[0].offer.machine_type == "pair"


def test_the_machines_and_instances_that_the_plan_names_stay() -> None:
    """Of two alike it keeps those that the plan counts on, though the others are busier."""
    one = template()
    wanted = plan(1, (one, 1))
    (machines,) = wanted.machines
    (instances,) = wanted.instances
    named = replace(
        wanted,
        machines=(replace(machines, kept=1, new=0, stays=("m1",)),),
        instances=(replace(instances, kept=1, stays=("a",)),),
    )
    running = [
        instance("a", one, "m1", (0,), load=1),
        instance("b", one, "m2", (0,), load=9),
        instance("c", one, "m2", (1,), load=9),
    ]
    held = [machine("m1"), machine("m2")]
    assert reconcile(named, held, running) == (DrainInstance(instance="b"), DrainInstance(instance="c"))
    assert DrainInstance(instance="a") in reconcile(wanted, held, running)


def test_an_instance_that_is_in_the_way_goes_and_one_like_it_starts_elsewhere() -> None:
    """a is on the only machine that has room for a node of two GPUs."""
    small, large, other = template(), template("n", count=2), template("o")
    wanted = replace(plan(2, (small, 1), (large, 1), (other, 1)), leaves=("a",))
    held = [machine("m1"), machine("m2")]
    running = [instance("a", small, "m1", (0,)), instance("b", other, "m2", (0,))]
    actions = reconcile(wanted, held, running)
    starts = [action for action in actions if isinstance(action, StartInstance)]
    assert [(start.template.model, start.claim.machines) for start in starts] == [("m", ("m2",))]
    assert DrainInstance(instance="a") not in actions, "its successor serves first"
    ready = [*running, instance("c", small, "m2", (1,))]
    assert reconcile(wanted, held, ready) == (DrainInstance(instance="a"),)
    after = [instance("b", other, "m2", (0,)), instance("c", small, "m2", (1,))]
    (start,) = reconcile(wanted, held, after)
    assert isinstance(start, StartInstance)
    assert (start.template.model, start.claim.machines) == ("n", ("m1",))


def test_instances_of_spot_machines_are_no_on_demand_ones() -> None:
    one = template()
    wanted = plan(1, (one, 1))
    (instances,) = wanted.instances
    spot = machine("s")
    spot = replace(spot, machine=replace(spot.machine, market="spot"))
    (machines,) = wanted.machines
    both = (machines, replace(machines, market="spot"))
    for market, started in (("on_demand", 1), ("spot", 0), (None, 0)):
        asked = replace(wanted, machines=both, instances=(replace(instances, market=market),))
        actions = reconcile(asked, [machine("m"), spot], [instance("a", one, "s", (0,))])
        starts = [a for a in actions if isinstance(a, StartInstance)]
        assert len(starts) == started
        assert all(start.claim.machines == ("m",) for start in starts)


def two_old_ones(load: tuple[int, int] = (0, 0)) -> list[HeldInstance]:
    """They take all of machine a."""
    return [
        instance("x", template(), "a", (0,), load=load[0]),
        instance("y", template(), "a", (1,), load=load[1]),
    ]


def test_without_room_the_floor_is_kept_and_said() -> None:
    new = template(layers=5)
    for floor in (0.5, 0.25, 0.0):
        got = schedule(plan(1, (new, 2)), [machine("a")], two_old_ones((3, 1)), Bounds(floor=floor))
        assert got.actions == (DrainInstance(instance="y"),)
        assert any("y drains first" in note and f"floor is {floor:.0%}" in note for note in got.notes)


def test_a_floor_breaks_only_where_nothing_else_is_left_and_it_is_said() -> None:
    new = template(layers=5)
    got = schedule(plan(1, (new, 2)), [machine("a")], two_old_ones(), Bounds(floor=0.9))
    assert got.actions == (DrainInstance(instance="x"),)
    assert any("no other way" in note for note in got.notes)
    going = [instance("x", template(), "a", (0,), InstanceState.DRAINING), two_old_ones()[1]]
    later = schedule(plan(1, (new, 2)), [machine("a")], going, Bounds(floor=0.9))
    assert later.actions == (), "one at a time"


def test_a_single_instance_without_room_makes_room_for_its_successor() -> None:
    new = template(layers=5, count=2)
    old = [instance("x", template(count=2), "a", (0, 1))]
    assert reconcile(plan(1, (new, 1)), [machine("a")], old) == (DrainInstance(instance="x"),)


def test_a_template_that_keeps_failing_to_start_costs_no_other_instance() -> None:
    """Its start is asked for again and again, on the place that it was given; nobody drains for it."""
    new = template(layers=5)
    half = [instance("x", template(), "a", (0,))]
    first = reconcile(plan(1, (new, 2)), [machine("a")], half)
    assert kinds(first) == ["StartInstance"]
    failed = [*half, instance("z", new, "a", (1,), InstanceState.FAILED, holding=False)]
    assert kinds(reconcile(plan(1, (new, 2)), [machine("a")], failed)) == ["StartInstance"]


def test_refitted_throughputs_keep_no_old_instance_alive() -> None:
    """What runs counts with its own throughput, though the plan has a higher one for templates like it."""
    kept, new, old = template(throughput=1.0), template(layers=5, throughput=4.0), template(layers=6)
    wanted = plan(2, (template(throughput=2.0), 1), (new, 1))
    running = [
        instance("kept", kept, "a", (0,)),
        instance("new", new, "a", (1,)),
        instance("old", old, "b", (0,)),
    ]
    assert reconcile(wanted, [machine("a"), machine("b")], running) == (DrainInstance(instance="old"),)


def test_prefill_and_decode_are_kept_together() -> None:
    """Either of the last two would end the model: neither goes before its successor is ready; then the one
    whose successor is there goes, though the other's is not."""
    old = {phase: template(phase=phase) for phase in PHASES}
    new = {phase: template(phase=phase, layers=5) for phase in PHASES}
    wanted = plan(2, (new["prefill"], 1), (new["decode"], 1))
    machines = [machine("a"), machine("b")]
    running = [instance("p", old["prefill"], "a", (0,)), instance("d", old["decode"], "a", (1,))]
    assert kinds(reconcile(wanted, machines, running)) == ["StartInstance", "StartInstance"]
    half = [
        *running,
        instance("q", new["prefill"], "b", (0,)),
        instance("e", new["decode"], "b", (1,), InstanceState.LOADING),
    ]
    assert reconcile(wanted, machines, half) == (DrainInstance(instance="p"),)


def test_the_last_decode_instance_waits_for_the_requests_of_its_prefill_instances() -> None:
    """A model that is no longer wanted ends in the order in which its requests do."""
    prefill, decode = template(phase="prefill"), template(phase="decode")
    running = [instance("p", prefill, "a", (0,), load=2), instance("d", decode, "a", (1,))]
    assert reconcile(plan(1), [machine("a")], running) == (DrainInstance(instance="p"),)
    draining = [instance("p", prefill, "a", (0,), InstanceState.DRAINING, load=1), running[1]]
    assert reconcile(plan(1), [machine("a")], draining) == ()
    empty = [instance("p", prefill, "a", (0,), InstanceState.DRAINING), running[1]]
    assert reconcile(plan(1), [machine("a")], empty) == (DrainInstance(instance="d"),)


def test_mixed_instances_serve_until_prefill_and_decode_are_both_ready() -> None:
    wanted = plan(2, (template(phase="prefill"), 1), (template(phase="decode"), 1))
    mixed = instance("m", template(), "a", (0,))
    machines = [machine("a"), machine("b")]
    prefill = instance("p", template(phase="prefill"), "b", (0,))
    decode = instance("d", template(phase="decode"), "b", (1,), InstanceState.LOADING)
    assert reconcile(wanted, machines, [mixed, prefill, decode]) == ()
    ready = [mixed, prefill, replace(decode, state=InstanceState.READY)]
    assert reconcile(wanted, machines, ready) == (DrainInstance(instance="m"),)


def test_a_machine_under_notice_is_replaced_at_once_and_drained_when_its_successors_are_ready() -> None:
    one = template()
    leaving = replace(machine("a"), leaving=True)
    running = [instance("x", one, "a", (0,))]
    assert kinds(reconcile(plan(1, (one, 1)), [leaving], running)) == ["Rent"]
    both = [leaving, machine("b")]
    (start,) = reconcile(plan(1, (one, 1)), both, running)
    assert isinstance(start, StartInstance)
    assert start.claim.machines == ("b",)
    loading = [*running, instance("y", one, "b", (0,), InstanceState.LOADING)]
    assert reconcile(plan(1, (one, 1)), both, loading) == ()
    hurry = [replace(leaving, hurry=True), machine("b")]
    assert reconcile(plan(1, (one, 1)), hurry, loading) == (DrainInstance(instance="x"),)
    ready = [*running, instance("y", one, "b", (0,))]
    assert reconcile(plan(1, (one, 1)), both, ready) == (DrainInstance(instance="x"),)
    gone = [instance("x", one, "a", (0,), InstanceState.GONE, holding=False), ready[1]]
    assert reconcile(plan(1, (one, 1)), both, gone) == (EndMachine(machine="a"),)


def priced(kind: str, price: float, kept: int, new: int) -> PlannedMachines:
    return PlannedMachines(
        machine_type=kind, domain=HERE, market="on_demand", price_usd_h=price, kept=kept, new=new
    )


def test_the_budget_holds_while_one_machine_follows_another() -> None:
    """Old and new together cost 2: with that they overlap; with less the old one goes first."""
    old, new = template(), template(layers=5)
    wanted = replace(plan(0, (new, 1)), machines=(priced("other", 1.0, 0, 1),))
    key = OfferKey("other", HERE, "on_demand")
    supply = {key: Supply(machine_type=replace(KIND, name="other"), most=1)}
    running = [instance("x", old, "a", (0,))]
    enough = schedule(wanted, [machine("a")], running, Bounds(budget_usd_h=2.0, supply=supply))
    assert enough.actions == (Rent(offer=key),)
    short = schedule(wanted, [machine("a")], running, Bounds(budget_usd_h=1.5, supply=supply))
    assert short.actions == (DrainInstance(instance="x"),)
    assert any("budget" in note for note in short.notes)
    gone = [instance("x", old, "a", (0,), InstanceState.GONE, holding=False)]
    left = reconcile(wanted, [machine("a")], gone, Bounds(budget_usd_h=1.5, supply=supply))
    assert left == (EndMachine(machine="a"),)
    returning = [machine("a", MachineState.DRAINING)]
    assert reconcile(wanted, returning, gone, Bounds(budget_usd_h=1.5, supply=supply)) == ()
    given = [machine("a", MachineState.RELEASED)]
    assert reconcile(wanted, given, gone, Bounds(budget_usd_h=1.5, supply=supply)) == (Rent(offer=key),)


def test_no_more_is_rented_than_can_be_had() -> None:
    supply = {OfferKey("pair", HERE, "on_demand"): Supply(machine_type=KIND, most=2)}
    got = schedule(plan(3, (template(), 5)), [machine("a")], [], Bounds(supply=supply))
    assert kinds(got.actions) == ["Rent", "StartInstance", "StartInstance"]
    assert any("no more of it can be had" in note for note in got.notes)


def test_of_machines_alike_the_ones_that_can_go_without_a_loss_are_settled_once() -> None:
    """Either may go; with b's instances gone first the plan's choice would turn to the other one."""
    old, new = template(), template(layers=5)
    running = [
        instance("x", old, "a", (0,), load=1),
        instance("y", old, "b", (0,), load=9),
        instance("z", old, "b", (1,), load=9),
    ]
    machines = [machine("a"), machine("b")]
    wanted = settled(plan(1, (new, 2)), machines, running)
    assert wanted.machines[0].stays == ("a",)
    start, *rest = reconcile(wanted, machines, running)
    assert isinstance(start, StartInstance)
    assert start.claim.machines == ("a",)
    assert rest == [DrainInstance(instance="x")]
