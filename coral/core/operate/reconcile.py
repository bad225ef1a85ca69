"""From what runs to what the plan wants: an ordered schedule under supply, budget and floors.

Pure and without memory: asked again after every event, it answers with what can be done *now*. Doing that and
asking again leads to the plan, if clouds give what the plan counts on; asking twice without doing anything
gives the same answer. See docs/reconcile.md.

* What matches the plan is kept. Successors start first where there is room: on devices that are free, or on
  machines of the plan that can be had within the budget while the old ones are still held.
* An unwanted instance serves until the plan's demand is served without it. Then it drains, the least loaded
  first, and its devices are the next one's.
* Where there is no room, unwanted instances drain first, as few as make room and down to the floor of their
  model. Only where nothing else is possible a floor breaks.
* A machine ends when the plan has no use for it and nothing holds it: what is ended is never rented again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from coral.core.operate.actions import (
    Action,
    DrainInstance,
    EndMachine,
    Rent,
    Schedule,
    StartInstance,
)
from coral.core.operate.difference import difference, surplus_machines, template_key
from coral.core.operate.going import Going
from coral.core.operate.ground import Ground
from coral.core.operate.holdings import (
    INSTANCE_STARTING,
    INSTANCE_WANTED,
    MACHINE_COMING,
    MACHINE_HELD,
    HeldInstance,
    HeldMachine,
    OfferKey,
)
from coral.core.operate.lifecycle import MachineState
from coral.core.operate.renting import Supply, renting
from coral.core.operate.served import Asked, Floors
from coral.types.plan import Plan

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
    "template_key",
]


class Bounds(Struct, frozen=True, kw_only=True):
    """What a change has to keep to.

    `supply`: by offer, what there is of it; an offer that is not in it has no limit. `floor`: share of what
    the plan will serve of a model that is served throughout. `asked`: by model, for the demand that counts.
    """

    supply: Mapping[OfferKey, Supply] = {}
    budget_usd_h: float | None = None
    floor: float = 0.5
    asked: Mapping[str, Asked] = {}


def reconcile(
    plan: Plan,
    machines: Iterable[HeldMachine],
    instances: Iterable[HeldInstance],
    bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
) -> Schedule:
    """What to do now, in order: rent, start, drain, end."""
    machines = sorted(machines, key=lambda one: one.machine.id)
    instances = sorted(instances, key=lambda one: one.id)
    surplus = surplus_machines(plan, machines, instances)
    missing, unwanted = difference(plan, machines, instances, surplus)
    rents = renting(plan, machines, bounds.supply, bounds.budget_usd_h)
    floors = Floors(plan, instances, bounds.asked, bounds.floor)
    missing.sort(key=lambda one: floors.share(one.template.model))
    going = Going(machines, instances, unwanted, surplus, floors)
    going.release()
    ground = Ground(machines, instances, unwanted, surplus, rents, bounds.supply)
    starts, short = ground.starts(missing)
    going.for_money(rents.lacking_usd_h)
    going.for_room(short, ground)
    used = {node.machine_id for one in instances if one.holding for node in one.claim.nodes}
    ends = [EndMachine(machine=id) for id in sorted(surplus) if id not in used]
    acts = rents.now or starts or ends or going.chosen
    if not acts and not _in_progress(machines, instances, surplus):
        going.for_money(rents.lacking_usd_h, anyhow=True)
        going.for_room(short, ground, anyhow=True)
    drains = [DrainInstance(instance=one.id) for one in going.chosen]
    rented = [Rent(offer=key) for key in rents.now]
    return Schedule(
        actions=(*rented, *starts, *drains, *ends), notes=tuple(dict.fromkeys((*rents.notes(), *going.notes)))
    )


def _in_progress(
    machines: Sequence[HeldMachine], instances: Sequence[HeldInstance], surplus: set[str]
) -> bool:
    """Whether something is on its way that may make room: then floors hold until it is there."""
    coming = any(one.state in MACHINE_COMING and one.machine.id not in surplus for one in machines)
    returning = any(one.state is MachineState.DRAINING for one in machines)
    starting = any(one.state in INSTANCE_STARTING for one in instances)
    leaving = any(one.holding and one.state not in INSTANCE_WANTED for one in instances)
    return coming or returning or starting or leaving
