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
        rest = [*(wanted[i] for i, got in enumerate(claims) if got is None), *wanted[number + 1 :]]
        got = claim_one(one, now, rest, then) if guarded else claim_one(one, now)
        claims.append(got)
        if got:
            now, then = [without(slot, got) for slot in now], [without(slot, got) for slot in then]
    return claims


def claim_one(
    one: Wanted, slots: Sequence[Slots], rest: Sequence[Wanted] = (), later: Sequence[Slots] | None = None
) -> Claim | None:
    """A claim that leaves room for the `rest` later; anything that fits where `later` is not given."""
    left = list(slots)
    while packed := pack([one], left):
        (got,) = packed
        if later is None or pack(rest, [without(slot, got) for slot in later]) is not None:
            return got
        left = [slot for slot in left if slot.machine_id not in got.machines]
    return None
