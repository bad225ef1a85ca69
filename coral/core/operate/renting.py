"""Which machines are to be rented now, within what can be had and what they may cost together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from coral.core.operate.difference import wanted_machines
from coral.core.operate.holdings import MACHINE_HELD, MACHINE_PAID, HeldMachine, OfferKey
from coral.types.hardware import Machine, MachineType
from coral.types.plan import Plan

CENT = 1e-9


class Supply(Struct, frozen=True, kw_only=True):
    """What there is of an offer: `most` machines of it can be held, those that are held included."""

    machine_type: MachineType
    most: int


class Hire(Struct, frozen=True, kw_only=True):
    """One machine that is to be rented. `machine`: as if it were there; None where nobody has said what such
    a machine is."""

    offer: OfferKey
    price_usd_h: float
    machine: Machine | None


class Renting(Struct, frozen=True, kw_only=True):
    """`now`: what is to be rented. `for_money`: what has to wait until machines are given back, since the
    budget is spent. `for_supply`: what cannot be had now.

    `money_usd_h`: what the budget leaves before anything is rented.
    """

    now: tuple[Hire, ...]
    for_money: tuple[Hire, ...]
    for_supply: tuple[Hire, ...]
    money_usd_h: float

    @property
    def all(self) -> tuple[Hire, ...]:
        return self.now + self.for_money + self.for_supply

    def lacking_usd_h(self) -> list[float]:
        """For each of `for_money`: what has to be given back before it and those before it can be rented."""
        left = self.money_usd_h - sum(one.price_usd_h for one in self.now)
        return [
            sum(one.price_usd_h for one in self.for_money[: n + 1]) - left for n in range(len(self.for_money))
        ]

    def notes(self) -> tuple[str, ...]:
        why = {
            "the budget is spent until machines are given back": self.for_money,
            "no more of it can be had now": self.for_supply,
        }
        said = [f"renting {one.offer} waits: {reason}" for reason, some in why.items() for one in some]
        return tuple(dict.fromkeys(said))


def renting(
    plan: Plan,
    machines: Sequence[HeldMachine],
    supply: Mapping[OfferKey, Supply],
    budget_usd_h: float | None,
) -> Renting:
    """What the plan holds beyond what is held. Machines that leave are held no longer, and not counted: they
    end by themselves."""
    ours = [one for one in machines if one.state in MACHINE_PAID and not one.leaving]
    held = Counter(OfferKey.of(one.machine) for one in ours if one.state in MACHINE_HELD)
    paid = Counter(OfferKey.of(one.machine) for one in machines if one.state in MACHINE_PAID)
    prices = {OfferKey(p.machine_type, p.domain, p.market): p.price_usd_h for p in plan.machines}
    money = float("inf") if budget_usd_h is None else budget_usd_h - sum(o.machine.price_usd_h for o in ours)
    left = money + CENT
    now: list[Hire] = []
    for_money: list[Hire] = []
    for_supply: list[Hire] = []
    for key, wanted in wanted_machines(plan).items():
        for number in range(wanted - held[key]):
            one = _hire(key, prices[key], number, supply)
            if key in supply and paid[key] >= supply[key].most:
                for_supply.append(one)
                continue
            paid[key] += 1
            if one.price_usd_h > left:
                for_money.append(one)
            else:
                now.append(one)
                left -= one.price_usd_h
    return Renting(
        now=tuple(now), for_money=tuple(for_money), for_supply=tuple(for_supply), money_usd_h=money
    )


def _hire(key: OfferKey, price_usd_h: float, number: int, supply: Mapping[OfferKey, Supply]) -> Hire:
    machine = None
    if key in supply:
        machine = Machine(
            id=f"{key} #{number}",
            machine_type=supply[key].machine_type,
            domain=key.domain,
            price_usd_h=price_usd_h,
            market=key.market,
        )
    return Hire(offer=key, price_usd_h=price_usd_h, machine=machine)
