"""Devices for the instances that are to start now, so that none takes the place that only another fits."""

from __future__ import annotations

from collections.abc import Sequence

from coral.core.operate.packing import pack
from coral.core.operate.slots import Claim, Slots, Wanted, without


def claim(
    wanted: Sequence[Wanted], slots: Sequence[Slots], later: Sequence[Slots] = ()
) -> list[Claim | None]:
    """A claim for each that is wanted, or None for those that do not fit now. `later`: what will be free
    once all that is to go has gone and all that is to come has come.

    Tries all together first, then one by one in the order given. As long as all can have room later, none
    takes what would leave another without: a small node waits rather than sit where only a large one fits.
    """
    together = pack(wanted, slots)
    if together is not None:
        return list(together)
    now, then = list(slots), list(later)
    guarded = pack(wanted, then) is not None
    claims: list[Claim | None] = []
    for number, one in enumerate(wanted):
        packed = pack([one], now)
        rest = [*(wanted[i] for i, got in enumerate(claims) if got is None), *wanted[number + 1 :]]
        left = now
        while packed and guarded:
            beside = [without(slot, packed[0]) for slot in then]
            if pack(rest, beside) is not None:
                then = beside
                break
            refused = packed[0].machines
            left = [slot for slot in left if slot.machine_id not in refused]
            packed = pack([one], left)
        claims.append(packed[0] if packed else None)
        if packed:
            now = [without(slot, packed[0]) for slot in now]
    return claims
