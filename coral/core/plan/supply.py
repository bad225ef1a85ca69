"""Machines that are held or can be had, by domain: N_c = kept + new."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from coral.hookspecs.planner import View
from coral.types.hardware import Domain, Machine, Market


class Lot(Struct, frozen=True, kw_only=True):
    """Machines that are alike: `limit` of one type, market and price, either held or obtainable."""

    domain: Domain
    gpu: str
    gpus: int
    machine_type: str
    market: Market
    price_usd_h: float
    held: bool
    limit: int
    preemption_per_h: float = 0.0

    @property
    def kind(self) -> tuple[Domain, str, int, str, Market, float]:
        """What makes two machines interchangeable."""
        return (self.domain, self.gpu, self.gpus, self.machine_type, self.market, self.price_usd_h)


class Supply(Struct, frozen=True, kw_only=True):
    """`lots` sorted, held ones before new ones of a kind: equal inputs in any order give one program."""

    domains: tuple[Domain, ...]
    lots: tuple[Lot, ...]

    def of(self, domain: Domain, gpu: str | None = None, market: Market | None = None) -> tuple[Lot, ...]:
        return tuple(
            lot
            for lot in self.lots
            if lot.domain == domain and gpu in (None, lot.gpu) and market in (None, lot.market)
        )

    def markets(self, domain: Domain) -> tuple[Market, ...]:
        return tuple(sorted({lot.market for lot in self.of(domain)}))

    def gpu_price(self, domain: Domain, gpu: str, market: Market | None = None) -> float:
        """Mean over what is sold or held there of the price per GPU; 0 where there is none."""
        return _mean([lot.price_usd_h / lot.gpus for lot in self.of(domain, gpu, market)])

    def node_price(self, domain: Domain, gpu: str, count: int, market: Market | None = None) -> float:
        """p_c of a node that is a whole machine: the cheapest of that size; 0 where there is none."""
        prices = [lot.price_usd_h for lot in self.of(domain, gpu, market) if lot.gpus == count]
        return min(prices, default=0.0)

    def mean_node_price(self, domain: Domain, gpu: str, count: int, market: Market | None = None) -> float:
        """As `node_price`, the mean."""
        return _mean([lot.price_usd_h for lot in self.of(domain, gpu, market) if lot.gpus == count])


def supply(view: View) -> Supply:
    """Equal offers (same type, market, price, domain) are added up, as are equal held machines."""
    lost = _preemptions(view)
    limits: dict[tuple[tuple[Domain, str, int, str, Market, float], bool], int] = {}
    for offer in view.offers:
        if offer.obtainable > 0:
            type_ = offer.machine_type
            kind = (offer.domain, type_.gpu, type_.gpus, type_.name, offer.market, offer.price_usd_h)
            limits[kind, False] = limits.get((kind, False), 0) + offer.obtainable
    for machine in view.machines:
        kind = machine_kind(machine)
        limits[kind, True] = limits.get((kind, True), 0) + 1
    lots = tuple(
        lot(
            kind,
            held=held,
            limit=limits[kind, held],
            preemption_per_h=lost[kind[0], kind[3], kind[4]],
        )
        for kind, held in sorted(limits, key=lambda key: (key[0], not key[1]))
    )
    return Supply(domains=tuple(sorted({one.domain for one in lots})), lots=lots)


def machine_kind(machine: Machine) -> tuple[Domain, str, int, str, Market, float]:
    type_ = machine.machine_type
    return (machine.domain, type_.gpu, type_.gpus, type_.name, machine.market, machine.price_usd_h)


def lot(
    kind: tuple[Domain, str, int, str, Market, float],
    *,
    held: bool,
    limit: int,
    preemption_per_h: float = 0.0,
) -> Lot:
    domain, gpu, gpus, name, market, price = kind
    return Lot(
        domain=domain,
        gpu=gpu,
        gpus=gpus,
        machine_type=name,
        market=market,
        price_usd_h=price,
        held=held,
        limit=limit,
        preemption_per_h=preemption_per_h,
    )


def _preemptions(view: View) -> dict[tuple[Domain, str, Market], float]:
    """Of each machine type in a domain and market; what is on offer knows better than what is held."""
    found: dict[tuple[Domain, str, Market], float] = {}
    for some in (view.machines, view.offers):
        rates: dict[tuple[Domain, str, Market], float] = {}
        for one in some:
            key = (one.domain, one.machine_type.name, one.market)
            rate = one.preemption_per_h if one.market == "spot" else 0.0
            rates[key] = max(rates.get(key, 0.0), rate)
        found |= rates
    return found


def _mean(prices: Sequence[float]) -> float:
    return sum(prices) / len(prices) if prices else 0.0
