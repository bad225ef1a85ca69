"""Machines that are held or can be had, by domain: N_c = kept + new."""

from __future__ import annotations

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

    @property
    def kind(self) -> tuple[Domain, str, int, str, Market, float]:
        """What makes two machines interchangeable."""
        return (self.domain, self.gpu, self.gpus, self.machine_type, self.market, self.price_usd_h)


class Supply(Struct, frozen=True, kw_only=True):
    """`lots` sorted, held ones before new ones of a kind: equal inputs in any order give one program."""

    domains: tuple[Domain, ...]
    lots: tuple[Lot, ...]

    def of(self, domain: Domain, gpu: str | None = None) -> tuple[Lot, ...]:
        return tuple(lot for lot in self.lots if lot.domain == domain and (gpu is None or lot.gpu == gpu))

    def gpu_price(self, domain: Domain, gpu: str) -> float:
        """Mean over what is sold or held there of the price per GPU; 0 where there is none."""
        prices = [lot.price_usd_h / lot.gpus for lot in self.of(domain, gpu)]
        return sum(prices) / len(prices) if prices else 0.0

    def node_price(self, domain: Domain, gpu: str, count: int) -> float:
        """p_c of a node that is a whole machine: the cheapest of that size; 0 where there is none."""
        prices = [lot.price_usd_h for lot in self.of(domain, gpu) if lot.gpus == count]
        return min(prices, default=0.0)


def supply(view: View) -> Supply:
    """Equal offers (same type, market, price, domain) are added up, as are equal held machines."""
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
        lot(kind, held=held, limit=limits[kind, held])
        for kind, held in sorted(limits, key=lambda key: (key[0], not key[1]))
    )
    return Supply(domains=tuple(sorted({one.domain for one in lots})), lots=lots)


def machine_kind(machine: Machine) -> tuple[Domain, str, int, str, Market, float]:
    type_ = machine.machine_type
    return (machine.domain, type_.gpu, type_.gpus, type_.name, machine.market, machine.price_usd_h)


def lot(kind: tuple[Domain, str, int, str, Market, float], *, held: bool, limit: int) -> Lot:
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
    )
