"""One look at a change of plan: what differs, where there is room, and what can be done of it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from coral.core.operate.actions import DrainInstance, EndMachine, Rent, Schedule
from coral.core.operate.difference import difference, surplus_machines
from coral.core.operate.going import Going
from coral.core.operate.ground import Ground
from coral.core.operate.holdings import (
    INSTANCE_STARTING,
    INSTANCE_WANTED,
    MACHINE_COMING,
    HeldInstance,
    HeldMachine,
    OfferKey,
)
from coral.core.operate.lifecycle import MachineState
from coral.core.operate.renting import Supply, renting
from coral.core.operate.served import Asked, Floors
from coral.core.operate.way import Move, Search
from coral.types.plan import Plan, PlannedInstances


class Bounds(Struct, frozen=True, kw_only=True):
    """What a change has to keep to.

    `supply`: by offer, what there is of it; an offer that is not in it has no limit. `floor`: share of what
    the plan will serve of a model that is served throughout. `asked`: by model, for the demand that counts.
    """

    supply: Mapping[OfferKey, Supply] = {}
    budget_usd_h: float | None = None
    floor: float = 0.5
    asked: Mapping[str, Asked] = {}


class Change:
    """`surplus`: ids of machines that go; those of `surplus_machines` where not given."""

    def __init__(
        self,
        plan: Plan,
        machines: Sequence[HeldMachine],
        instances: Sequence[HeldInstance],
        bounds: Bounds,
        surplus: set[str] | None = None,
    ) -> None:
        self._machines, self._instances, self._bounds = machines, instances, bounds
        self._rents = renting(plan, machines, bounds.supply, bounds.budget_usd_h)
        if surplus is None:
            money_is_short = bool(self._rents.for_money)
            surplus = surplus_machines(plan, machines, instances, money_is_short=money_is_short)
        self.surplus = surplus
        self._missing, unwanted = difference(plan, machines, instances, surplus)
        gone = {one.id for one in unwanted}
        kept = [one for one in instances if one.state in INSTANCE_WANTED and one.id not in gone]
        self._planned: list[HeldInstance | PlannedInstances] = [*self._missing, *kept]
        floors = Floors(self._planned, (one for one in instances if one.ready), bounds.asked, bounds.floor)
        self._missing.sort(key=lambda one: floors.share(one.template.model))
        self._going = Going(machines, instances, unwanted, surplus, floors)
        self._going.at_once()
        self._ground = Ground(machines, instances, unwanted, surplus, self._rents)
        self._starts, self._short = self._ground.starts(self._missing)

    @cached_property
    def way(self) -> tuple[Move, ...] | None:
        """On which every floor holds; None where none was found.

        What starts is as good as ready, what goes as good as gone. All that can be had is as good as there,
        unless there is not money enough for everything.
        """
        if self._ground.unknown:
            return None
        rents, gone = self._rents, self._going.ids
        serving = [one for one in self._instances if one.state in INSTANCE_WANTED and one.id not in gone]
        return Search(
            self._missing,
            self._going.old(),
            self._ground.soon(gone, () if rents.for_money else rents.now),
            rents.now + rents.for_money if rents.for_money else (),
            rents.money_usd_h,
            self._going.returning(),
            Floors(self._planned, serving, self._bounds.asked, self._bounds.floor),
        ).find()

    @property
    def has_room(self) -> bool:
        """Whether everything that is missing can start now."""
        return not self._short

    def schedule(self) -> Schedule:
        """What to do now. To be asked once."""
        going, rents, starts = self._going, self._rents, self._starts
        rented = [Rent(offer=one.offer) for one in rents.now]
        if not self.has_room and self.way is not None:
            in_turn, starts = going.follow(self.way, self._ground.now, rents.money_usd_h)
            rented = in_turn if rents.for_money else rented
        else:
            going.release()
            going.for_money(rents.lacking_usd_h())
            going.for_room(self._short, self._ground)
        used = {node.machine_id for one in self._instances if one.holding for node in one.claim.nodes}
        ends = [EndMachine(machine=id) for id in sorted(self.surplus) if id not in used]
        if not (rented or starts or ends or going.chosen or self._in_progress()):
            going.for_money(rents.lacking_usd_h(), anyhow=True)
            going.for_room(self._short, self._ground, anyhow=True)
        drains = [DrainInstance(instance=one.id) for one in going.chosen]
        notes = dict.fromkeys((*rents.notes(), *going.notes))
        return Schedule(actions=(*rented, *starts, *drains, *ends), notes=tuple(notes))

    def _in_progress(self) -> bool:
        """Whether something is on its way that may make room: then floors hold until it is there."""
        machines, instances = self._machines, self._instances
        coming = any(one.state in MACHINE_COMING and one.machine.id not in self.surplus for one in machines)
        returning = any(one.state is MachineState.DRAINING for one in machines)
        starting = any(one.state in INSTANCE_STARTING for one in instances)
        leaving = any(one.holding and one.state not in INSTANCE_WANTED for one in instances)
        return coming or returning or starting or leaving
