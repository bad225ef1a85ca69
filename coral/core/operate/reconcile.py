"""From what runs to what the plan wants: an ordered list of actions.

Pure and without memory: asked again after every event, it answers with what can be done *now*. Start
first and drain after where there is room, else drain first; what matches the plan is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.core.operate.slots import Claim, claim, free_slots
from coral.types.hardware import Domain, Machine, Market
from coral.types.placement import Template
from coral.types.plan import Plan, PlannedInstances

MACHINE_COMING = frozenset({MachineState.ORDERED, MachineState.BOOTING})
MACHINE_HELD = MACHINE_COMING | {MachineState.JOINED}
INSTANCE_STARTING = frozenset({InstanceState.PLACED, InstanceState.LOADING})
INSTANCE_WANTED = INSTANCE_STARTING | {InstanceState.READY}


class OfferKey(Struct, frozen=True, order=True):
    """What is rented alike: machine type, domain, market."""

    machine_type: str
    domain: Domain
    market: Market

    @classmethod
    def of(cls, machine: Machine) -> OfferKey:
        return cls(machine.machine_type.name, machine.domain, machine.market)


class HeldMachine(Struct, frozen=True, kw_only=True):
    """A machine of ours. While it is only ordered, `machine.id` is the order's."""

    machine: Machine
    state: MachineState


class HeldInstance(Struct, frozen=True, kw_only=True):
    """`holding`: False once all its processes have ended and its devices are free."""

    id: str
    template: Template
    domain: Domain
    state: InstanceState
    claim: Claim
    load: int = 0
    """Requests on it."""
    holding: bool = True


class Rent(Struct, frozen=True, kw_only=True, tag=True):
    offer: OfferKey


class StartInstance(Struct, frozen=True, kw_only=True, tag=True):
    template: Template
    domain: Domain
    claim: Claim


class DrainInstance(Struct, frozen=True, kw_only=True, tag=True):
    instance: str


class EndMachine(Struct, frozen=True, kw_only=True, tag=True):
    machine: str


Action = Rent | StartInstance | DrainInstance | EndMachine


def template_key(template: Template) -> bytes:
    """Templates of equal model, phase and placement are the same wherever they came from.

    Throughputs are left out: a refit changes weights, and is no reason to reload.
    """
    stages = [
        (stage.first_layer, stage.end_layer, sorted((str(n.node_type), n.tp) for n in stage.nodes))
        for stage in template.placement.stages
    ]
    return msgspec.msgpack.encode((template.model, template.phase, stages))


def reconcile(
    plan: Plan, machines: Iterable[HeldMachine], instances: Iterable[HeldInstance]
) -> tuple[Action, ...]:
    """What to do now, in order: rent, start, drain, end.

    Doing all of it and asking again at the next event leads to the plan, if the cloud gives what the
    plan counts on. Asking twice without doing anything gives the same answer.
    """
    machines, instances = list(machines), list(instances)
    actions: list[Action] = list(_rents(plan, machines))
    surplus = _surplus_machines(plan, machines, instances)
    missing, unwanted = _difference(plan, machines, instances, surplus)
    held = [node for instance in instances if instance.holding for node in instance.claim.nodes]
    usable = [
        one.machine for one in machines if one.state is MachineState.JOINED and one.machine.id not in surplus
    ]
    coming = [one.machine for one in machines if one.state in MACHINE_HELD and one.machine.id not in surplus]
    gone = {one.id for one in unwanted}
    staying = [
        node
        for one in instances
        if one.state in INSTANCE_WANTED and one.id not in gone
        for node in one.claim.nodes
    ]
    claims = claim(
        [(one.template.placement, one.domain) for one in missing],
        free_slots(usable, held),
        [one.market for one in missing],
        later=free_slots(coming, staying),
    )
    short: list[PlannedInstances] = []
    for one, got in zip(missing, claims, strict=True):
        if got is None:
            short.append(one)
        else:
            actions.append(StartInstance(template=one.template, domain=one.domain, claim=got))
    actions += _drains(unwanted, missing, short, machines, instances)
    used = {node.machine_id for node in held}
    actions += [EndMachine(machine=id) for id in sorted(surplus) if id not in used]
    return tuple(actions)


def _rents(plan: Plan, machines: Sequence[HeldMachine]) -> list[Rent]:
    held = Counter(OfferKey.of(one.machine) for one in machines if one.state in MACHINE_HELD)
    rents: list[Rent] = []
    for planned in plan.machines:
        key = OfferKey(planned.machine_type, planned.domain, planned.market)
        rents += [Rent(offer=key)] * max(0, planned.kept + planned.new - held[key])
    return rents


def _surplus_machines(
    plan: Plan, machines: Sequence[HeldMachine], instances: Sequence[HeldInstance]
) -> set[str]:
    """Machines beyond what the plan wants: none that it names, of the others those with the fewest devices
    in wanted use first."""
    wanted: Counter[OfferKey] = Counter()
    stays = {id for planned in plan.machines for id in planned.stays}
    for planned in plan.machines:
        wanted[OfferKey(planned.machine_type, planned.domain, planned.market)] += planned.kept + planned.new
    use: Counter[str] = Counter()
    for instance in instances:
        if instance.holding:
            worth = 1000 if instance.state in INSTANCE_WANTED else 1
            for node in instance.claim.nodes:
                use[node.machine_id] += worth * len(node.devices)
    groups: dict[OfferKey, list[HeldMachine]] = {}
    for one in machines:
        if one.state in MACHINE_HELD:
            groups.setdefault(OfferKey.of(one.machine), []).append(one)
    surplus: set[str] = set()
    for key, group in groups.items():
        group.sort(
            key=lambda one: (
                one.machine.id in stays,
                use[one.machine.id],
                one.state not in MACHINE_COMING,
                one.machine.id,
            )
        )
        surplus.update(one.machine.id for one in group[: max(0, len(group) - wanted[key])])
    return surplus


def _difference(
    plan: Plan, machines: Sequence[HeldMachine], instances: Sequence[HeldInstance], surplus: set[str]
) -> tuple[list[PlannedInstances], list[HeldInstance]]:
    """(what the plan wants and does not run, once for each instance; what runs and the plan does not want).

    An instance on a machine that is to go, or that the plan names as one to go, counts as unwanted: its
    successor starts elsewhere first.
    """
    spot = {one.machine.id for one in machines if one.machine.market == "spot"}
    groups: dict[tuple[bytes, Domain], list[HeldInstance]] = {}
    unwanted: list[HeldInstance] = []
    for instance in instances:
        if instance.state not in INSTANCE_WANTED:
            continue
        if instance.id in plan.leaves or surplus.intersection(instance.claim.machines):
            unwanted.append(instance)
        else:
            groups.setdefault((template_key(instance.template), instance.domain), []).append(instance)
    stays = {id for planned in plan.instances for id in planned.stays}
    for group in groups.values():  # those the plan names, then ready before starting ones, loaded before idle
        group.sort(
            key=lambda one: (one.id not in stays, one.state is not InstanceState.READY, -one.load, one.id)
        )
    missing: list[PlannedInstances] = []
    for planned in plan.instances:
        group = groups.get((template_key(planned.template), planned.domain), [])
        fit = [one for one in group if planned.market in (None, _market(one, spot))][: planned.count]
        for one in fit:
            group.remove(one)
        missing += [planned] * (planned.count - len(fit))
    return missing, unwanted + [instance for group in groups.values() for instance in group]


def _market(instance: HeldInstance, spot: set[str]) -> Market:
    """An instance is lost as a spot one with any of its machines."""
    return "spot" if spot.intersection(instance.claim.machines) else "on_demand"


def _drains(
    unwanted: Sequence[HeldInstance],
    missing: Sequence[PlannedInstances],
    short: Sequence[PlannedInstances],
    machines: Sequence[HeldMachine],
    instances: Sequence[HeldInstance],
) -> list[DrainInstance]:
    """Which unwanted instances may go now, least loaded first.

    One stays while a successor of its model is missing or starting, unless what is missing has no
    room and no machine is on the way: then instances in the way go first, one at a time.
    """
    waiting = {one.template.model for one in missing}
    gone = {one.id for one in unwanted}
    waiting |= {
        one.template.model for one in instances if one.state in INSTANCE_STARTING and one.id not in gone
    }
    unwanted = sorted(unwanted, key=lambda one: (one.load, one.id))
    free_to_go = [
        one for one in unwanted if one.state in INSTANCE_STARTING or one.template.model not in waiting
    ]
    drains = [DrainInstance(instance=one.id) for one in free_to_go]
    coming = {one.machine.domain for one in machines if one.state in MACHINE_COMING}
    leaving = {one.domain for one in instances if one.holding and one.state not in INSTANCE_WANTED} | {
        one.domain for one in free_to_go
    }
    for domain in dict.fromkeys(one.domain for one in short):
        if domain in coming or domain in leaving:
            continue
        in_the_way = [one for one in unwanted if one.domain == domain and one not in free_to_go]
        drains += [DrainInstance(instance=one.id) for one in in_the_way[:1]]
    return drains
