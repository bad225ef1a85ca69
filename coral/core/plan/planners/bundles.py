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
from coral.types.program import Floats, Ints

Order = Literal["least_served", "in_turn"]
MOST_BUNDLES = 100_000
SERVED = 1 - 1e-9


class Bundle(Struct, frozen=True, kw_only=True):
    """`lines`: instances of each column, all of one model. `place`: the domain they are in, None where they
    are in several. `rate`: the fraction of the demand of its least served phase that one bundle serves."""

    model: int
    place: int | None
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
                place=int(problem.places[columns.domain[line]]),
                services=(service,),
                lines={int(line): 1},
                price_usd_h=float(prices[line]),
                rate=float(columns.throughput[line]) / problem.needs[service].demand,
            )
        )
    return found


class _Shelf:
    """Bundles of one model, services and place, the most efficient first; `alive`: not known to lack room.

    `takes` (bundles, sites * node types): nodes of each type in each site.
    """

    def __init__(self, problem: Problem, bundles: Sequence[Bundle]) -> None:
        self.bundles = sorted(bundles, key=lambda b: (b.price_usd_h / b.rate, -b.rate, sorted(b.lines)))
        self.price = np.array([one.price_usd_h for one in self.bundles])
        self.rate = np.array([one.rate for one in self.bundles])
        self.alive = np.ones(len(bundles), dtype=np.bool_)
        columns, kinds = problem.columns, len(problem.node_types)
        self.takes = np.zeros((len(bundles), len(problem.sites) * kinds), dtype=np.int32)
        for row, one in enumerate(self.bundles):
            for line, count in one.lines.items():
                at = int(columns.domain[line]) * kinds
                self.takes[row, at : at + kinds] += columns.usage[line] * count

    def best(self, left: float | None) -> tuple[float, int] | None:
        """Price per demand served and row of the best alive, `left` being all that is of use."""
        rows = np.flatnonzero(self.alive)
        if not rows.size:
            return None
        useful = self.rate[rows] if left is None else np.minimum(self.rate[rows], left)
        score = self.price[rows] / useful
        at = int(np.lexsort((-self.rate[rows], score))[0])
        return float(score[at]), int(rows[at])


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
        found: dict[tuple[int, tuple[int, ...], int | None], list[Bundle]] = {}
        for one in bundles:
            found.setdefault((one.model, one.services, one.place), []).append(one)
        self._shelves = {key: _Shelf(problem, some) for key, some in found.items()}
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
        while True:
            best: tuple[float, _Shelf, int] | None = None
            for key, shelf in self._shelves.items():
                if key[0] == model and service in key[1] and (place is None or key[2] == place):
                    left = max(self._left(key[1]), 1e-9) if self.trim_last else None
                    found = shelf.best(left)
                    if found is not None and (best is None or found[0] < best[0]):
                        best = (found[0], shelf, found[1])
            if best is None:
                return False
            chosen = best[1].bundles[best[2]]
            if self.stock.place(chosen.lines):
                for line, count in chosen.lines.items():
                    self._count(line, count)
                return True
            self._forget(model, best[1].takes[best[2]])

    def _left(self, services: tuple[int, ...]) -> float:
        """What is missing of the demand where it is missing most, as a fraction."""
        return max(1.0 - float(self.able[i].sum()) / self.needs[i] for i in services)

    def _forget(self, model: int, nodes: Ints) -> None:
        """All that take at least these nodes in the same sites: room only gets less. With a cap, those of
        the model that has reached it."""
        for key, shelf in self._shelves.items():
            if key[0] == model or not self.stock.limited:
                shelf.alive &= (shelf.takes < nodes).any(axis=1)

    def _cheapest_domains(self, model: int) -> list[int]:
        """Domains by the price of serving all of a model's demand there at its best efficiency."""

        def price(place: int) -> float:
            total = 0.0
            for service in self._services(model):
                rates = [
                    shelf.price[0] / shelf.rate[0] / len(key[1])
                    for key, shelf in self._shelves.items()
                    if key[0] == model and key[2] in (place, None) and service in key[1]
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
