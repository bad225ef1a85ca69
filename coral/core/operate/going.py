"""Who goes: unwanted instances that are not needed any longer, or in the way of what is to start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coral.core.operate.actions import Rent, StartInstance
from coral.core.operate.claiming import claim
from coral.core.operate.ground import Ground, wanted_of
from coral.core.operate.holdings import INSTANCE_WANTED, HeldInstance, HeldMachine
from coral.core.operate.lifecycle import MachineState
from coral.core.operate.renting import CENT, Hire
from coral.core.operate.room import DeviceRoom, MakesRoom, freed, leavers, money_room
from coral.core.operate.served import Floors
from coral.core.operate.slots import Slots, without
from coral.core.operate.way import Drain, Move, Start
from coral.types.plan import PlannedInstances

MOST_AT_ONCE = 8
"""Missing instances for which room is made in one go; the next go is after the next event."""


class Going:
    """`chosen`: those that go, in order. `notes`: why, where they would be missed."""

    def __init__(
        self,
        machines: Sequence[HeldMachine],
        instances: Sequence[HeldInstance],
        unwanted: Sequence[HeldInstance],
        surplus: set[str],
        floors: Floors,
    ) -> None:
        self.chosen: list[HeldInstance] = []
        self.notes: list[str] = []
        self._machines = machines
        self._instances = instances
        self._unwanted = sorted(unwanted, key=lambda one: (one.load, one.id))
        self._surplus = surplus
        self._floors = floors

    @property
    def ids(self) -> set[str]:
        return {one.id for one in self.chosen}

    def at_once(self) -> None:
        """Those that serve nothing, and those whose machine ends soon."""
        hurry = {one.machine.id for one in self._machines if one.hurry}
        for one in self._unwanted:
            if not one.ready or hurry.intersection(one.claim.machines):
                self._go(one)

    def release(self) -> None:
        """Those whose successors are ready, and those that need none."""
        for one in self.old():
            if self.is_released(one):
                self._go(one)

    def is_released(self, one: HeldInstance) -> bool:
        return self._floors.is_free(one) and not self._last_decode(one)

    def follow(
        self, way: Sequence[Move], now: Sequence[Slots], money_usd_h: float
    ) -> tuple[list[Rent], list[StartInstance]]:
        """What can be done now of a way that was found; those that go are chosen.

        A start whose devices are not free yet keeps what there is of them. Machines are rented and instances
        go in the order of the way: one that goes for free when its successors are ready, one that makes room
        when all before it is under way.
        """
        rents: list[Rent] = []
        starts: list[StartInstance] = []
        free = {slot.machine_id: list(slot.free) for slot in now}
        kept: Counter[str] = Counter()
        waiting = staying = False
        for move in way:
            match move:
                case Hire(offer=offer, price_usd_h=price):
                    money_usd_h -= price  # also where it is not there yet: what comes after must not take it
                    if money_usd_h >= -CENT:
                        rents.append(Rent(offer=offer))
                    else:
                        waiting = True
                case Start():
                    needs = move.needs()
                    if any(len(free.get(id, ())) - kept[id] < count for id, count in needs.items()):
                        kept += needs
                        waiting = True
                    else:
                        starts.append(move.on(free))
                case Drain(instance=one) if not staying and self.is_released(one):
                    self._go(one)
                case Drain(instance=one, free=False) if not waiting and self._floors.keeps(one):
                    self._go(one)
                    self.notes.append(f"{one.id} drains first, to make room: {self._kept(one)}")
                case Drain():
                    waiting = staying = True
        return rents, starts

    def returning(self) -> dict[str, float]:
        """By id the price of machines that are being given back, or will be when nothing is left on them."""
        return {
            one.machine.id: one.machine.price_usd_h
            for one in self._machines
            if (one.machine.id in self._surplus and not one.leaving) or one.state is MachineState.DRAINING
        }

    def old(self) -> list[HeldInstance]:
        """Those that still serve, and are to go."""
        return [one for one in self._left() if one.ready]

    def for_room(self, short: Sequence[PlannedInstances], ground: Ground, *, anyhow: bool = False) -> None:
        """So that what has no room, now or soon, has."""
        soon, later = ground.left(self.ids), ground.later
        claims = claim([wanted_of(one) for one in short], soon, later)
        for got in claims:
            if got is not None:
                soon, later = [without(s, got) for s in soon], [without(s, got) for s in later]
        lacking = [one for one, got in zip(short, claims, strict=True) if got is None]
        lacking = [one for one in lacking if one.domain not in ground.unknown]
        for number, planned in enumerate(lacking[:MOST_AT_ONCE]):
            rest = [wanted_of(other) for other in (*lacking[:number], *lacking[number + 1 :])]
            room = DeviceRoom(wanted_of(planned), rest, soon, later)
            candidates = [one for one in self._left() if one.domain == planned.domain]
            template = planned.template
            what = f"{template.model} ({template.phase}, {template.placement.picture()})"
            chosen = self._make(candidates, room, what, anyhow=anyhow)
            if chosen:
                got = room.found(chosen)
                assert got is not None  # that is why they were chosen
                soon = [without(slot, got) for slot in freed(soon, chosen)]
                later = [without(slot, got) for slot in later]
                if anyhow:
                    return

    def for_money(self, lacking_usd_h: Sequence[float], *, anyhow: bool = False) -> None:
        """So that machines that cost as much can be given back, beyond those on their way: first for the
        least that is lacking, then for more."""
        returning = [one for one in self._machines if one.state is MachineState.DRAINING]
        given_back = sum(one.machine.price_usd_h for one in returning)
        surplus = [one for one in self._machines if one.machine.id in self._surplus and not one.leaving]
        ids = {one.machine.id for one in surplus}
        for lacking in lacking_usd_h:
            staying = [
                one for one in self._instances if one.state in INSTANCE_WANTED and one.id not in self.ids
            ]
            room = money_room(lacking - given_back, surplus, staying)
            candidates = [one for one in self._left() if ids.intersection(one.claim.machines)]
            what = "machines that the budget does not allow beside theirs"
            if self._make(candidates, room, what, anyhow=anyhow) and anyhow:
                return

    # ------------------------------------------------------------ inside

    def _left(self) -> list[HeldInstance]:
        return [one for one in self._unwanted if one.id not in self.ids]

    def _go(self, one: HeldInstance) -> None:
        if one.ready:
            self._floors.go(one)
        self.chosen.append(one)

    def _make(
        self, candidates: Sequence[HeldInstance], room: MakesRoom, what: str, *, anyhow: bool
    ) -> list[HeldInstance]:
        if room(()) or not candidates:
            return []
        floors = self._floors
        chosen = leavers(candidates, room, floors, anyhow=anyhow)
        self.chosen += chosen
        for one in chosen:
            self.notes.append(f"{one.id} drains first, to make room for {what}: {self._kept(one)}")
        if not chosen:
            names = ", ".join(one.id for one in candidates)
            self.notes.append(f"the floor of {floors.floor:.0%} keeps {names}; {what} waits")
        return chosen

    def _kept(self, one: HeldInstance) -> str:
        model, floors = one.template.model, self._floors
        served = f"{floors.share(model):.0%} of what is planned for {model} is served meanwhile"
        below = " (no other way is left)" if floors.lack(model) > 0 else ""
        return f"{served}, its floor is {floors.floor:.0%}{below}"

    def _last_decode(self, one: HeldInstance) -> bool:
        """Whether it is the last one to decode in its domain while requests of prefill instances there, which
        go as well, may still need it."""
        if one.template.phase != "decode":
            return False
        near = [
            other
            for other in self._instances
            if other.template.model == one.template.model and other.domain == one.domain and other.holding
        ]
        if any(
            o.template.phase == "decode" and o.ready and o is not one and o.id not in self.ids for o in near
        ):
            return False
        unwanted = {other.id for other in self._unwanted}
        prefills = [o for o in near if o.template.phase == "prefill"]
        return any(o.id in unwanted if o.ready else o.load > 0 for o in prefills)
