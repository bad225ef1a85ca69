"""What the cheapest cover of a demand costs at given prices of everything else.

A demand in one cell costs what its strands cost. One in several cells may be served by one of them, which
is priced exactly, or split between them, which is priced on the grid: there the parts of two cells are
weighed against each other, of three by first joining two, and so on.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.exact.covers import Cover
from coral.core.plan.exact.strands import GRID, StrandPricer
from coral.types.program import Floats, Ints

ENDLESS = 1e6
"""Copies of one column that count, where its limit is higher or there is none."""


class Priced(Struct, frozen=True, kw_only=True, eq=False):
    """`least`: at most the cost of every cover; `items` (positions in the cover's columns) of a cheap one."""

    least: float
    items: Ints
    counts: Ints


class CoverPricer:
    def __init__(self, cover: Cover, upper: Floats) -> None:
        self.cover = cover
        self.copies: Ints = np.minimum(upper, ENDLESS).astype(np.int64)
        self.cells = [[StrandPricer(one, self.copies[one.at]) for one in cell] for cell in cover.cells]

    def price(self, reduced: Floats) -> Priced:
        """`reduced` (columns,) of the cover's columns at the prices of the linking rows."""
        gift, cost = self._gift(reduced)
        found = [self._cell(cell, cost, GRID) for cell in self.cells]
        items, least = min(found, key=lambda one: one[1])
        if len(self.cells) > 1:
            split, parts = self._split(cost)
            if split < least:
                chosen = [self._cell(self.cells[c], cost, part)[0] for c, part in parts]
                items, least = np.concatenate(chosen), split
        chosen_items, counts = np.unique(items, return_counts=True)
        return Priced(least=gift + least, items=chosen_items, counts=counts)

    def split_least(self, reduced: Floats) -> float:
        """At most the cost of every cover that more than one cell serves."""
        gift, cost = self._gift(reduced)
        return gift + self._split(cost)[0] if len(self.cells) > 1 else np.inf

    def with_each(self, reduced: Floats) -> Floats:
        """Per column, at most the cost of every cover that has it."""
        from coral.core.plan.exact import kernels

        gift, cost = self._gift(reduced)
        stairs = [[one.stairs(cost[one.strand.at])[0] for one in cell] for cell in self.cells]
        sums = [np.sum(cell, axis=0) for cell in stairs]
        out = np.full(len(cost), np.inf)
        for c, cell in enumerate(self.cells):
            elsewhere = np.full(GRID + 1, np.inf)
            elsewhere[0] = 0.0
            for other, whole in enumerate(sums):
                if other != c:
                    elsewhere = kernels.together(elsewhere, whole, GRID)
            for i, one in enumerate(cell):
                beside = np.zeros(GRID + 1)
                for k, other_stairs in enumerate(stairs[c]):
                    if k != i:
                        beside = beside + other_stairs
                rest = kernels.least_with(stairs[c][i], beside, elsewhere, GRID)
                out[one.strand.at] = cost[one.strand.at] + rest[one.weight]
        return gift + out

    def within(self, reduced: Floats, limit: float, most: int) -> Ints | None:
        """All minimal covers that cost at most `limit` as positions in the cover's columns, (n, depth),
        filled up with -1; None where they are more than `most` or may be split between cells."""
        gift, cost = self._gift(reduced)
        limit -= gift
        if len(self.cells) > 1 and self._split(cost)[0] <= limit:
            return None
        found: list[Ints] = []
        for cell in self.cells:
            leasts = [one.least(cost[one.strand.at])[1] for one in cell]
            if sum(leasts) > limit:
                continue
            lists = []
            for one, least in zip(cell, leasts, strict=True):
                some = one.within(cost[one.strand.at], limit - sum(leasts) + least, most)
                if not some.whole:
                    return None
                lists.append((np.where(some.items >= 0, one.strand.at[some.items], -1), some.costs))
            joined = _products(lists, limit + 1e-9 * max(1.0, abs(limit)), most)
            if joined is None:
                return None
            found.append(joined)
        if sum(map(len, found)) > most:
            return None
        return _stacked(found)

    def _gift(self, reduced: Floats) -> tuple[float, Floats]:
        """What columns of negative cost give at most, and costs without it."""
        if reduced.min(initial=0.0) >= 0:
            return 0.0, reduced
        return float((np.minimum(reduced, 0.0) * self.copies).sum()), np.maximum(reduced, 0.0)

    def _cell(self, cell: list[StrandPricer], cost: Floats, part: int) -> tuple[Ints, float]:
        chosen, total = [], 0.0
        for one in cell:
            items, least = one.least(cost[one.strand.at], part)
            total += least
            chosen.append(one.strand.at[items])
        return np.concatenate(chosen), total

    def _split(self, cost: Floats) -> tuple[float, list[tuple[int, int]]]:
        """The least of covers in more than one cell, and which cell serves which part."""
        from coral.core.plan.exact import kernels

        sums = [np.sum([one.stairs(cost[one.strand.at])[0] for one in cell], axis=0) for cell in self.cells]
        least, at, part = np.inf, 0, 0
        joined = sums[0]
        before = [joined]
        for c in range(1, len(sums)):
            value, left = kernels.least_split(joined, sums[c], GRID)
            if value < least:
                least, at, part = value, c, left
            joined = kernels.together(joined, sums[c], GRID)
            before.append(joined)
        if not np.isfinite(least):
            return np.inf, []
        parts = [(at, GRID - part)]
        while part > 0:
            at -= 1
            if at == 0:
                parts.append((0, part))
                break
            costs = [before[at - 1][part - t] + sums[at][t] for t in range(part + 1)]
            mine = int(np.argmin(costs))
            if mine:
                parts.append((at, mine))
            part -= mine
        return least, parts


def _products(lists: list[tuple[Ints, Floats]], limit: float, most: int) -> Ints | None:
    """One of each list, where the costs sum to at most the limit."""
    items, costs = lists[0]
    for more, price in lists[1:]:
        if len(costs) * len(price) > 50 * most:
            return None
        one, other = np.nonzero(costs[:, None] + price[None, :] <= limit)
        if len(one) > most:
            return None
        items, costs = np.hstack([items[one], more[other]]), costs[one] + price[other]
    return items


def _stacked(found: list[Ints]) -> Ints:
    width = max((one.shape[1] for one in found), default=0)
    wide = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=-1) for one in found]
    return np.concatenate(wide) if wide else np.zeros((0, 0), dtype=np.int64)
