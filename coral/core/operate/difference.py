"""Plan against holdings: which machines are too many, what is missing, what is unwanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from coral.core.operate.holdings import (
    INSTANCE_WANTED,
    MACHINE_COMING,
    MACHINE_HELD,
    HeldInstance,
    HeldMachine,
    OfferKey,
)
from coral.types.hardware import Domain, Market
from coral.types.placement import Template
from coral.types.plan import Plan, PlannedInstances

MATCHED = 1000


def template_key(template: Template) -> bytes:
    """Templates of equal model, phase and placement are the same wherever they came from.

    Throughputs are left out: a refit changes weights, and is no reason to reload.
    """
    stages = [
        (stage.first_layer, stage.end_layer, sorted((str(n.node_type), n.tp) for n in stage.nodes))
        for stage in template.placement.stages
    ]
    return msgspec.msgpack.encode((template.model, template.phase, stages))


def wanted_machines(plan: Plan) -> Counter[OfferKey]:
    """How many of each offer the plan holds."""
    wanted: Counter[OfferKey] = Counter()
    for planned in plan.machines:
        wanted[OfferKey(planned.machine_type, planned.domain, planned.market)] += planned.kept + planned.new
    return wanted


def surplus_machines(
    plan: Plan,
    machines: Sequence[HeldMachine],
    instances: Sequence[HeldInstance],
    *,
    money_is_short: bool = False,
) -> set[str]:
    """Machines that leave, and those beyond what the plan wants.

    Of an offer those go first that the plan does not name; then those with the fewest devices in the use
    of templates that it wants; then those that serve with others, since successors start sooner where
    there is room (where `money_is_short` those that serve with nothing, since they can be given back at
    once); then those that have not joined yet.
    """
    wanted = wanted_machines(plan)
    stays = {id for planned in plan.machines for id in planned.stays}
    known = {(template_key(planned.template), planned.domain) for planned in plan.instances}
    use: Counter[str] = Counter()
    other = 1 if money_is_short else -1
    for instance in instances:
        if instance.state in INSTANCE_WANTED:
            matched = instance.id not in plan.leaves
            matched &= (template_key(instance.template), instance.domain) in known
            for node in instance.claim.nodes:
                use[node.machine_id] += (MATCHED if matched else other) * len(node.devices)
    groups: dict[OfferKey, list[HeldMachine]] = {}
    surplus: set[str] = set()
    for one in machines:
        if one.state in MACHINE_HELD and one.leaving:
            surplus.add(one.machine.id)
        elif one.state in MACHINE_HELD:
            groups.setdefault(OfferKey.of(one.machine), []).append(one)
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


def difference(
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
        group.sort(key=lambda one: (one.id not in stays, not one.ready, -one.load, one.id))
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
