"""Replicas taken one after another, the most cost-efficient first: what planners without a solver do.

A *bundle* is the unit that is added: one instance of a phase (`homo`), or prefill and decode instances that
are balanced against each other (`cauchy`'s GPU combos). Its efficiency is demand served per USD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from coral.core.plan.allocation import Allocation, trimmed
from coral.core.plan.answer import bill, services
from coral.core.plan.planners.stock import Stock
from coral.core.plan.problem import Problem
from coral.core.plan.services import coupled
from coral.types.program import Floats

Order = Literal["least_served", "in_turn"]
MOST_BUNDLES = 100_000
SERVED = 1 - 1e-9


class Bundle(Struct, frozen=True, kw_only=True):
    """`lines`: instances of each column, all in one domain and of one model. `rate`: the fraction of the
    demand of its least served phase that one bundle serves."""

    model: int
    domain: int
    services: tuple[int, ...]
    lines: dict[int, int]
    price_usd_h: float
    rate: float


def singles(problem: Problem, prices: Floats) -> list[Bundle]:
    """A bundle for every new column: one instance."""
    columns = problem.columns
    found = []
    for line in np.flatnonzero((columns.kept < 0) & (columns.upper >= 1) & np.isfinite(prices)):
        service = int(columns.service[line])
        found.append(
            Bundle(
                model=problem.needs[service].model,
                domain=int(columns.domain[line]),
                services=(service,),
                lines={int(line): 1},
                price_usd_h=float(prices[line]),
                rate=float(columns.throughput[line]) / problem.needs[service].demand,
            )
        )
    return found


class BundleGreedy:
    """`order`: whose turn it is, the model least served or the first that is not served. `trim_last`:
    the last bundle is the cheapest that suffices and surplus instances are taken back; otherwise it is one
    more of the most efficient."""

    def __init__(
        self, problem: Problem, stock: Stock, bundles: Sequence[Bundle], *, order: Order, trim_last: bool
    ) -> None:
        self.problem, self.stock = problem, stock
        self.order, self.trim_last = order, trim_last
        self.able = np.zeros((len(problem.needs), int(problem.places.max(initial=-1)) + 1))
        """By domain, whatever markets its machines are from."""
        self.needs = [need.demand for need in problem.needs]
        self._by_place: dict[tuple[int, tuple[int, ...], int], list[Bundle]] = {}
        for one in bundles:
            self._by_place.setdefault((one.model, one.services, one.domain), []).append(one)
        for some in self._by_place.values():
            some.sort(key=lambda one: (one.price_usd_h / one.rate, -one.rate, sorted(one.lines)))
        self._domains = {model: self._cheapest_domains(model) for model in self._models()}

    def run(self) -> Allocation:
        """Kept instances first where they are of use; then bundles until all is served or nothing fits."""
        self._keep()
        for _ in range(MOST_BUNDLES):
            if not self._step():
                break
        return self._trimmed() if self.trim_last else self.stock.allocation

    def _models(self) -> list[int]:
        views = self.problem.view.models
        found = {need.model for need in self.problem.needs if need.demand > 0}
        return sorted(found, key=lambda m: (-views[m].priority, m))

    def _keep(self) -> None:
        columns = self.problem.columns
        kept = np.flatnonzero(columns.kept >= 0)
        price = self.stock.prices()
        worth = np.where(np.isfinite(price), price, 0.0)[kept] / np.maximum(columns.throughput[kept], 1e-12)
        for line in kept[np.lexsort((kept, worth))]:
            service = int(columns.service[line])
            while self.able[service].sum() < self.needs[service] * SERVED and self.stock.keep(int(line)):
                self._count(int(line), 1)

    def _count(self, line: int, count: int) -> None:
        columns = self.problem.columns
        place = self.problem.places[columns.domain[line]]
        self.able[columns.service[line], place] += count * columns.throughput[line]

    def _step(self) -> bool:
        """Add a bundle for the model whose turn it is, or for one after it."""
        models = [m for m in self._models() if self._fraction(m) < SERVED]
        if self.order == "least_served":
            priority = self.problem.view.models
            models.sort(key=lambda m: self._fraction(m) / priority[m].priority)
        return any(self._add(model) for model in models)

    def _fraction(self, model: int) -> float:
        own = self._services(model)
        able = np.array([self.able[i] / self.needs[i] for i in own])
        return float(able.min(axis=0).sum() if self._apart(model) else able.sum(axis=1).min())

    def _services(self, model: int) -> list[int]:
        return [i for i, n in enumerate(self.problem.needs) if n.model == model and n.demand > 0]

    def _apart(self, model: int) -> bool:
        return coupled(self.problem.view.models[model], self.problem.view)

    def _add(self, model: int) -> bool:
        own = self._services(model)
        if self._apart(model):
            return any(self._in_domain(model, own, place) for place in self._domains[model])
        lagging = sorted(own, key=lambda i: self.able[i].sum() / self.needs[i])
        return any(self._place(model, service, None) for service in lagging)

    def _in_domain(self, model: int, own: list[int], place: int) -> bool:
        """The lagging phase of a domain next; a domain where it finds no room is done."""
        lagging = min(own, key=lambda i: self.able[i, place] / self.needs[i])
        return self._place(model, lagging, place)

    def _place(self, model: int, service: int, place: int | None) -> bool:
        """The best bundle that serves `service` and still has room; those without room are forgotten."""
        here = [site for site, at in enumerate(self.problem.places) if place in (None, at)]
        while True:
            best: tuple[float, float, Bundle] | None = None
            for key, bundles in self._by_place.items():
                if key[0] != model or service not in key[1] or key[2] not in here or not bundles:
                    continue
                left = max(self._left(key[1]), 1e-9)
                for one in bundles if self.trim_last else bundles[:1]:
                    useful = min(one.rate, left) if self.trim_last else one.rate
                    score = (one.price_usd_h / useful, -one.rate)
                    if best is None or score < best[:2]:
                        best = (*score, one)
            if best is None:
                return False
            chosen = best[2]
            if self.stock.place(chosen.lines):
                for line, count in chosen.lines.items():
                    self._count(line, count)
                return True
            self._forget(chosen)

    def _left(self, services: tuple[int, ...]) -> float:
        """What is missing of the demand where it is missing most, as a fraction."""
        return max(1.0 - float(self.able[i].sum()) / self.needs[i] for i in services)

    def _forget(self, chosen: Bundle) -> None:
        """A bundle without room, and those of the same site that need at least the same nodes: with a cap,
        those of its model."""
        columns = self.problem.columns

        def takes(one: Bundle) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return sum(
                (columns.usage[line].astype(np.int64) * count for line, count in one.lines.items()),
                start=np.zeros(columns.usage.shape[1], dtype=np.int64),
            )

        nodes = takes(chosen)
        for key, bundles in self._by_place.items():
            if key[2] == chosen.domain and (key[0] == chosen.model or not self.stock.limited):
                bundles[:] = [one for one in bundles if one is not chosen and (takes(one) < nodes).any()]

    def _cheapest_domains(self, model: int) -> list[int]:
        """Domains by the price of serving all of a model's demand there at its best efficiency."""

        def price(place: int) -> float:
            total = 0.0
            for service in self._services(model):
                rates = [
                    some[0].price_usd_h / some[0].rate / len(key[1])
                    for key, some in self._by_place.items()
                    if key[0] == model and self.problem.places[key[2]] == place and service in key[1] and some
                ]
                total += min(rates, default=np.inf)
            return total

        return sorted(range(self.able.shape[1]), key=lambda place: (price(place), place))

    def _trimmed(self) -> Allocation:
        """Without new instances that nobody would miss, the dearest first."""
        problem, columns = self.problem, self.problem.columns
        found, faults = trimmed(problem, self.stock.allocation)
        if faults:
            return self.stock.allocation
        served = [one.served for one in services(problem, found)]
        prices = self.stock.prices()
        fresh = np.flatnonzero((columns.kept < 0) & (found.counts > 0))
        for line in fresh[np.argsort(-prices[fresh], kind="stable")]:
            while found.counts[line] > 0:
                counts = found.counts.copy()
                counts[line] -= 1
                less, faults = trimmed(problem, Allocation(counts=counts, machines=found.machines))
                after = [one.served for one in services(problem, less)]
                worse = any(b < a - 1e-9 * max(a, 1.0) for a, b in zip(served, after, strict=True))
                if faults or worse or bill(problem, less).cost_usd_h > bill(problem, found).cost_usd_h:
                    break
                found = less
        return found
