"""What the cheapest cover of a demand row costs at given prices of everything else, exactly.

On a grid the cost of covering t of the row is a staircase g(t), a knapsack by dynamic programming; with
g as the bound a depth-first search finds the cheapest cover at its true weights. Columns that a cover would
use more often than they may be used are counted from then on; the others are taken as unlimited,
which can only make the bound lower.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.exact.covers import Cover
from coral.types.program import Floats, Ints

GRID = 4096
EFFORT = 400_000
"""Steps of one search; where they do not do, the staircase is the bound."""
RECOUNTS = 8


class Priced(Struct, frozen=True, kw_only=True, eq=False):
    """`least`: at most the cost of every cover; `items` (positions in the cover's columns) of a cheap one."""

    least: float
    items: Ints
    counts: Ints


class Found(Struct, frozen=True, kw_only=True, eq=False):
    """Covers as positions in the cover's columns, (n, depth) filled up with -1; whether these are all."""

    items: Ints
    whole: bool


class CoverPricer:
    def __init__(self, cover: Cover, upper: Floats) -> None:
        self.cover = cover
        self.share = cover.share
        self.weight: Ints = np.minimum(np.ceil(cover.share * GRID - 1e-7), GRID).astype(np.int64)
        self.copies: Ints = np.where(np.isfinite(upper), np.minimum(upper, 1e6), 1e6).astype(np.int64)
        self.counted = np.zeros(len(self.share), dtype=np.bool_)
        """Columns whose limit has been met by a cover and is counted since."""

    def price(self, reduced: Floats) -> Priced:
        """`reduced` (columns,) of the cover's columns at the prices of the linking rows."""
        gift, cost = self._gift(reduced)
        for _ in range(RECOUNTS):
            stairs, ladder = self._stairs(cost)
            items, least = self._least(cost, stairs, ladder)
            over = self._over(items)
            if not over.size:
                break
            self.counted[over] = True
        chosen, counts = np.unique(items, return_counts=True)
        return Priced(least=gift + least, items=chosen, counts=counts)

    def with_each(self, reduced: Floats) -> Floats:
        """Per column, at most the cost of every cover that has it."""
        from coral.core.plan.exact import kernels

        gift, cost = self._gift(reduced)
        stairs, _ = self._stairs(cost)
        return gift + kernels.with_one(self.weight, cost, stairs, GRID)

    def within(self, reduced: Floats, limit: float, most: int) -> Found:
        """All minimal covers that cost at most `limit`, or `most` of them."""
        from coral.core.plan.exact import kernels

        gift, cost = self._gift(reduced)
        stairs, _ = self._stairs(cost)
        slack = limit - gift + 1e-9 * max(1.0, abs(limit))
        fit = np.flatnonzero(kernels.with_one(self.weight, cost, stairs, GRID) <= slack)
        order = fit[np.argsort(-self.share[fit], kind="stable")]
        copies = np.where(self.copies[order] * self.share[order] >= 1.0, -1, self.copies[order])
        items, _, whole = kernels.covers_within(
            self.share[order], cost[order], copies, stairs, GRID, slack, most, 40 * EFFORT, False
        )
        return Found(items=np.where(items >= 0, order[items], -1), whole=whole)

    def _gift(self, reduced: Floats) -> tuple[float, Floats]:
        """What columns of negative cost give at most, and costs without it."""
        if reduced.min(initial=0.0) >= 0:
            return 0.0, reduced
        return float((np.minimum(reduced, 0.0) * self.copies).sum()), np.maximum(reduced, 0.0)

    def _stairs(self, cost: Floats) -> tuple[Floats, Ints]:
        from coral.core.plan.exact import kernels

        ladder = np.r_[
            kernels.cheapest_by_weight(self.weight, cost, ~self.counted, GRID), np.flatnonzero(self.counted)
        ]
        copies = np.where(self.counted[ladder], self.copies[ladder], -1)
        return kernels.staircase(self.weight[ladder], cost[ladder], copies, GRID), ladder

    def _least(self, cost: Floats, stairs: Floats, ladder: Ints) -> tuple[Ints, float]:
        """The cheapest cover, searched first among the ladder, then among all that could beat it."""
        from coral.core.plan.exact.kernels import covers_within, with_one

        limit = np.inf
        best: Ints = np.zeros(0, dtype=np.int64)
        whole = False
        fit = ladder
        for _ in range(2):
            order = fit[np.argsort(-self.share[fit], kind="stable")]
            copies = np.where(self.counted[order], self.copies[order], -1)
            items, costs, whole = covers_within(
                self.share[order], cost[order], copies, stairs, GRID, limit, 1, EFFORT, True
            )
            if len(costs):
                best, limit = order[items[0][items[0] >= 0]], float(costs[0])
            fit = np.flatnonzero(with_one(self.weight, cost, stairs, GRID) < limit - 1e-12)
            if len(fit) == 0:
                break
        least = limit if whole and np.isfinite(limit) else float(stairs[GRID])
        return best, least

    def _over(self, items: Ints) -> Ints:
        chosen, counts = np.unique(items, return_counts=True)
        return chosen[(counts > self.copies[chosen]) & ~self.counted[chosen]]
