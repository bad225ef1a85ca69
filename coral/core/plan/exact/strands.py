"""What the cheapest cover of one strand costs, exactly: a knapsack that must be filled.

On a grid the cost of covering t of it is a staircase g(t), by dynamic programming; with g as the bound a
depth-first search finds the cheapest cover at its true weights. Columns that a cover would use more often
than they may be used are counted from then on; the others are taken as unlimited, which can only make
the bound lower.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.exact.covers import Strand
from coral.types.program import Floats, Ints

GRID = 4096
EFFORT = 400_000
"""Steps of one search; where they do not do, the staircase is the bound."""
RECOUNTS = 8
STEPS = np.arange(GRID + 1) / GRID


class Found(Struct, frozen=True, kw_only=True, eq=False):
    """Covers as positions in the strand, (n, depth) filled up with -1; their costs; whether they are all."""

    items: Ints
    costs: Floats
    whole: bool


class StrandPricer:
    """Costs are of the strand's items, not negative."""

    def __init__(self, strand: Strand, copies: Ints) -> None:
        self.strand = strand
        self.share = strand.share
        self.copies = copies
        self.weight: Ints = np.minimum(np.ceil(strand.share * GRID - 1e-7), GRID).astype(np.int64)
        self.counted = np.zeros(len(self.share), dtype=np.bool_)
        """Items whose limit has been met by a cover and is counted since."""

    def stairs(self, cost: Floats) -> tuple[Floats, Ints]:
        """g, and the items that it is made of."""
        from coral.core.plan.exact import kernels

        ladder: Ints = np.r_[
            kernels.cheapest_by_weight(self.weight, cost, ~self.counted, GRID), np.flatnonzero(self.counted)
        ]
        copies = np.where(self.counted[ladder], self.copies[ladder], -1)
        stairs = kernels.staircase(self.weight[ladder], cost[ladder], copies, GRID)
        if not len(cost):
            return stairs, ladder
        slope = float((cost / self.share).min())  # small items weigh too much on the grid
        return np.maximum(stairs, slope * STEPS), ladder

    def least(self, cost: Floats, part: int = GRID) -> tuple[Ints, float]:
        """Items of a cheap cover of `part` of the grid, and at most what any costs (inf: none does)."""
        items: Ints = np.zeros(0, dtype=np.int64)
        value = np.inf
        for _ in range(RECOUNTS):
            stairs, ladder = self.stairs(cost)
            items, value = self._search(cost, stairs, ladder, part)
            over = self._over(items)
            if not over.size:
                break
            self.counted[over] = True
        return items, value

    def within(self, cost: Floats, limit: float, most: int) -> Found:
        """All minimal covers that cost at most `limit`, or `most` of them."""
        from coral.core.plan.exact import kernels

        stairs, _ = self.stairs(cost)
        slack = limit + 1e-9 * max(1.0, abs(limit))
        fit = np.flatnonzero(kernels.with_one(self.weight, cost, stairs, GRID) <= slack)
        order = fit[np.argsort(-self.share[fit], kind="stable")]
        copies = np.where(self.copies[order] * self.share[order] >= 1.0, -1, self.copies[order])
        items, costs, whole = kernels.covers_within(
            self.share[order], cost[order], copies, stairs, GRID, 1.0, slack, most, 40 * EFFORT, False
        )
        return Found(items=np.where(items >= 0, order[items], -1), costs=costs, whole=whole)

    def _search(self, cost: Floats, stairs: Floats, ladder: Ints, part: int) -> tuple[Ints, float]:
        """The cheapest cover, searched first among the ladder, then among all that could beat it."""
        from coral.core.plan.exact import kernels

        limit = np.inf
        best: Ints = np.zeros(0, dtype=np.int64)
        whole = False
        fit = ladder
        for _ in range(2):
            order = fit[np.argsort(-self.share[fit], kind="stable")]
            copies = np.where(self.counted[order], self.copies[order], -1)
            items, costs, whole = kernels.covers_within(
                self.share[order], cost[order], copies, stairs, GRID, part / GRID, limit, 1, EFFORT, True
            )
            if len(costs):
                best, limit = order[items[0][items[0] >= 0]], float(costs[0])
            rest = np.maximum(part - self.weight, 0)
            fit = np.flatnonzero(cost + stairs[rest] < limit - 1e-12)
            if len(fit) == 0:
                break
        least = limit if whole and np.isfinite(limit) else float(stairs[part])
        if not len(best) and np.isfinite(least):  # too deep to be searched
            item = ladder[np.argmin(cost[ladder] / self.share[ladder])]
            best = np.full(int(np.ceil(part / GRID / self.share[item] - 1e-9)), item, dtype=np.int64)
        return best, least

    def _over(self, items: Ints) -> Ints:
        chosen, counts = np.unique(items, return_counts=True)
        over: Ints = chosen[(counts > self.copies[chosen]) & ~self.counted[chosen]]
        return over
