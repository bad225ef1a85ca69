"""Which machines are to be rented now, within what can be had and what they may cost together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from coral.core.operate.difference import wanted_machines
from coral.core.operate.holdings import MACHINE_HELD, MACHINE_PAID, HeldMachine, OfferKey
from coral.types.hardware import MachineType
from coral.types.plan import Plan

CENT = 1e-9


class Supply(Struct, frozen=True, kw_only=True):
    """What there is of an offer: `most` machines of it can be held, those that are held included."""

    machine_type: MachineType
    most: int


class Renting(Struct, frozen=True, kw_only=True):
    """`now`: what is to be rented. `for_money`: what has to wait until machines are given back, since the
    budget is spent. `for_supply`: what cannot be had now."""

    now: tuple[OfferKey, ...]
    for_money: tuple[OfferKey, ...]
    for_supply: tuple[OfferKey, ...]
    lacking_usd_h: tuple[float, ...]
    """For each of `for_money`: what has to be given back before it and those before it can be rented."""

    @property
    def all(self) -> tuple[OfferKey, ...]:
        return self.now + self.for_money + self.for_supply

    def notes(self) -> tuple[str, ...]:
        money = [
            f"renting {key} waits: the budget is spent until machines are given back"
            for key in self.for_money
        ]
        supply = [f"renting {key} waits: no more of it can be had now" for key in self.for_supply]
        return tuple(dict.fromkeys(money + supply))


def renting(
    plan: Plan,
    machines: Sequence[HeldMachine],
    supply: Mapping[OfferKey, Supply],
    budget_usd_h: float | None,
) -> Renting:
    """What the plan holds beyond what is held. Machines that leave are held no longer, and not counted: they
    end by themselves."""
    held = Counter(
        OfferKey.of(one.machine) for one in machines if one.state in MACHINE_HELD and not one.leaving
    )
    paid = Counter(OfferKey.of(one.machine) for one in machines if one.state in MACHINE_PAID)
    spent = sum(one.machine.price_usd_h for one in machines if one.state in MACHINE_PAID and not one.leaving)
    prices = {OfferKey(p.machine_type, p.domain, p.market): p.price_usd_h for p in plan.machines}
    now: list[OfferKey] = []
    for_money: list[OfferKey] = []
    for_supply: list[OfferKey] = []
    lacking: list[float] = []
    asked = 0.0
    for key, wanted in wanted_machines(plan).items():
        for _ in range(wanted - held[key]):
            if key in supply and paid[key] >= supply[key].most:
                for_supply.append(key)
            elif budget_usd_h is not None and spent + prices[key] > budget_usd_h + CENT:
                for_money.append(key)
                asked += prices[key]
                lacking.append(spent + asked - budget_usd_h)
            else:
                now.append(key)
                paid[key] += 1
                spent += prices[key]
    return Renting(
        now=tuple(now),
        for_money=tuple(for_money),
        for_supply=tuple(for_supply),
        lacking_usd_h=tuple(lacking),
    )
