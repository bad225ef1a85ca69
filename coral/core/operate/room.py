"""Where there is no room for what is to start: which instances go first, so that there is.

They are unwanted ones that still serve. Least loaded first, as few as make room, and none that would bring
its model below its floor, unless nothing else is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from coral.core.operate.claiming import claim_one
from coral.core.operate.holdings import HeldInstance, HeldMachine
from coral.core.operate.packing import pack
from coral.core.operate.served import Floors
from coral.core.operate.slots import Claim, Slots, Wanted

MakesRoom = Callable[[Sequence[HeldInstance]], bool]
"""Whether there is room once these have gone."""


def leavers(
    candidates: Sequence[HeldInstance], makes_room: MakesRoom, floors: Floors, *, anyhow: bool = False
) -> list[HeldInstance]:
    """As few of the candidates, in their order, as make room; empty where they do not. `floors` has them as
    gone after that. `anyhow`: also where floors break, with those first that break them least."""
    chosen: list[HeldInstance] = []
    rest = list(candidates)
    enough = False
    while rest and not enough:
        if anyhow:
            rest.sort(key=floors.harm)  # stable: the candidates' order else
        one = rest.pop(0)
        if anyhow or floors.keeps(one):
            floors.go(one)
            chosen.append(one)
            enough = makes_room(chosen)
    if not enough:
        for one in chosen:
            floors.back(one)
        return []
    for one in reversed(chosen[:-1]):  # the last one was needed
        fewer = [other for other in chosen if other is not one]
        if makes_room(fewer):
            floors.back(one)
            chosen = fewer
    return chosen


class DeviceRoom:
    """Whether `wanted` has room on what is free `soon` and on the devices of those that go, and leaves room
    for the `rest` later."""

    def __init__(
        self, wanted: Wanted, rest: Sequence[Wanted], soon: Sequence[Slots], later: Sequence[Slots]
    ) -> None:
        self._wanted, self._rest, self._soon = wanted, rest, soon
        self._later = later if pack([wanted, *rest], later) is not None else None

    def __call__(self, gone: Sequence[HeldInstance]) -> bool:
        return self.found(gone) is not None

    def found(self, gone: Sequence[HeldInstance]) -> Claim | None:
        return claim_one(self._wanted, freed(self._soon, gone), self._rest, self._later)


def freed(slots: Sequence[Slots], gone: Sequence[HeldInstance]) -> list[Slots]:
    """With the devices of those that go."""
    devices: dict[str, set[int]] = {}
    for one in gone:
        for node in one.claim.nodes:
            devices.setdefault(node.machine_id, set()).update(node.devices)
    return [
        replace(slot, free=tuple(sorted(devices[slot.machine_id].union(slot.free))))
        if slot.machine_id in devices
        else slot
        for slot in slots
    ]


def money_room(
    needed_usd_h: float, surplus: Sequence[HeldMachine], instances: Sequence[HeldInstance]
) -> MakesRoom:
    """Whether machines that cost as much can be given back."""

    def makes_room(gone: Sequence[HeldInstance]) -> bool:
        ids = {one.id for one in gone}
        staying = [one for one in instances if one.holding and one.id not in ids]
        used = {node.machine_id for one in staying for node in one.claim.nodes}
        given = sum(one.machine.price_usd_h for one in surplus if one.machine.id not in used)
        return given >= needed_usd_h - 1e-9

    return makes_room
