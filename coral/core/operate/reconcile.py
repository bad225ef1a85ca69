"""From what runs to what the plan wants: an ordered schedule under supply, budget and floors.

Pure and without memory: asked again after every event, it answers with what can be done *now*. Doing that and
asking again leads to the plan, if clouds give what the plan counts on; asking twice without doing anything
gives the same answer. Only which of several machines alike go is settled once, when a plan is accepted, since
what is best changes on the way. See docs/reconcile.md.

* What matches the plan is kept. Successors start first where there is room: on devices that are free, or on
  machines of the plan that can be had within the budget while the old ones are still held.
* An unwanted instance serves until the plan's demand is served without it. Then it drains, the least loaded
  first, and its devices are the next one's.
* Where there is no room, unwanted instances drain first, as few as make room and down to the floor of their
  model. Only where nothing else is possible a floor breaks.
* A machine ends when the plan has no use for it and nothing holds it: what is ended is never rented again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coral.core.operate.actions import (
    Action,
    DrainInstance,
    EndMachine,
    Rent,
    Schedule,
    StartInstance,
)
from coral.core.operate.change import Bounds, Change
from coral.core.operate.difference import surplus_machines, template_key
from coral.core.operate.holdings import (
    INSTANCE_STARTING,
    INSTANCE_WANTED,
    MACHINE_HELD,
    HeldInstance,
    HeldMachine,
    OfferKey,
)
from coral.core.operate.lifecycle import MachineState
from coral.types.plan import Plan, PlannedMachines

__all__ = [
    "INSTANCE_STARTING",
    "INSTANCE_WANTED",
    "MACHINE_HELD",
    "Action",
    "Bounds",
    "DrainInstance",
    "EndMachine",
    "HeldInstance",
    "HeldMachine",
    "OfferKey",
    "Rent",
    "Schedule",
    "StartInstance",
    "reconcile",
    "settled",
    "template_key",
]

ANY = Bounds()


def reconcile(
    plan: Plan, machines: Iterable[HeldMachine], instances: Iterable[HeldInstance], bounds: Bounds = ANY
) -> Schedule:
    """What to do now, in order: rent, start, drain, end."""
    machines = sorted(machines, key=lambda one: one.machine.id)
    instances = sorted(instances, key=lambda one: one.id)
    return Change(plan, machines, instances, bounds).schedule()


def settled(
    plan: Plan, machines: Iterable[HeldMachine], instances: Iterable[HeldInstance], bounds: Bounds = ANY
) -> Plan:
    """The plan with all machines named that stay, where more are held than it wants: such that the others can
    go without any floor broken, if a way to that is found."""
    machines = sorted(machines, key=lambda one: one.machine.id)
    instances = sorted(instances, key=lambda one: one.id)
    choices = [surplus_machines(plan, machines, instances, money_is_short=short) for short in (False, True)]
    chosen = choices[0]
    if choices[0] != choices[1]:
        changes = [Change(plan, machines, instances, bounds, surplus=surplus) for surplus in choices]
        good = [one for one in changes if one.has_room or one.way is not None]
        chosen = good[0].surplus if good else Change(plan, machines, instances, bounds).surplus
    named = {
        one.machine.id: OfferKey.of(one.machine)
        for one in machines
        if one.state in MACHINE_HELD - {MachineState.ORDERED} and one.machine.id not in chosen
    }  # an order's id ends when the machine has its own
    return replace(plan, machines=tuple(_naming(planned, named) for planned in plan.machines))


def _naming(planned: PlannedMachines, named: dict[str, OfferKey]) -> PlannedMachines:
    key = OfferKey(planned.machine_type, planned.domain, planned.market)
    return replace(planned, stays=tuple(id for id, its in named.items() if its == key))
