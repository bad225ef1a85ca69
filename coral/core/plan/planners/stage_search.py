"""Stages by local search: a good placement at once, for the integer program (`stages`) to improve on.

Which nodes are in which stage decides everything: then the greatest flow follows in closed form, as for
templates. With R_s(j) the sum of T̂_j over the nodes of stage s::

    t* = min( min_s R_s(1),  L-th largest of all R_s(j) )

Nodes start where the least work is, the most able first; then single nodes are moved and pairs swapped as
long as t* grows or, at the same t*, more layers could be held beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from coral.core.generate.layers import roles_of, split
from coral.core.plan.planners.stages import Staged, flow_bound
from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.types.program import Floats, Ints

MOST_STEPS = 2_000


def searched_stages(table: ThroughputTable, stages: int, available: Mapping[int, int]) -> Staged | None:
    """A placement of all nodes in so many stages, or None where they cannot hold all layers."""
    if not 1 <= stages <= min(table.layers, sum(available.values())):
        return None
    search = _Search(table, stages, available)
    search.climb()
    return search.found(flow_bound(table, stages, available))


class _Search:
    def __init__(self, table: ThroughputTable, stages: int, available: Mapping[int, int]) -> None:
        self.layers, self.stages = table.layers, stages
        self.kinds = [kind for kind, count in sorted(available.items()) if count > 0]
        self.types = len(table.node_types)
        roles = [ROLES.index(role) for role in roles_of(stages)]
        self.rates = table.rate[stages - 1][roles][:, :, self.kinds]
        """(stages, layers, kinds)."""
        self.nodes: Ints = self._start([available[kind] for kind in self.kinds])
        self.sums: Floats = np.einsum("slk,sk->sl", self.rates, self.nodes)

    def _start(self, counts: list[int]) -> Ints:
        nodes = np.zeros((self.stages, len(self.kinds)), dtype=np.int64)
        able = (self.rates * np.arange(1, self.layers + 1)[:, None]).max(axis=(0, 1))
        load = np.zeros(self.stages)
        for kind in np.argsort(-able, kind="stable"):
            for _ in range(counts[kind]):
                stage = int(np.argmin(load))
                nodes[stage, kind] += 1
                load[stage] += max(float(able[kind]), 1e-12)
        return nodes

    def climb(self) -> None:
        best = self._worth(self.sums)
        for _ in range(MOST_STEPS):
            better = self._better(best)
            if better is None:
                return
            best = better

    def _better(self, best: tuple[float, int]) -> tuple[float, int] | None:
        """Make the first change that helps; what it is worth."""
        for change in self._changes():
            sums = self.sums.copy()
            for stage, kind, by in change:
                sums[stage] += by * self.rates[stage, :, kind]
            worth = self._worth(sums)
            if worth[0] > best[0] * (1 + 1e-9) or (worth[0] >= best[0] and worth[1] > best[1]):
                for stage, kind, by in change:
                    self.nodes[stage, kind] += by
                self.sums = np.einsum("slk,sk->sl", self.rates, self.nodes)
                return worth
        return None

    def _changes(self) -> Iterator[list[tuple[int, int, int]]]:
        """Moves of a node, then swaps of two: (stage, kind, +1 or -1)."""
        held = [(int(s), int(k)) for s, k in zip(*np.nonzero(self.nodes), strict=True)]
        for stage, kind in held:
            if self.nodes[stage].sum() > 1:
                for to in range(self.stages):
                    if to != stage:
                        yield [(stage, kind, -1), (to, kind, 1)]
        for at, (stage, kind) in enumerate(held):
            for to, other in held[at + 1 :]:
                if to != stage and other != kind:
                    yield [(stage, kind, -1), (to, kind, 1), (to, other, -1), (stage, other, 1)]

    def _worth(self, sums: Floats) -> tuple[float, int]:
        """t*, and how many layers could be held above it."""
        every = sums.ravel()
        flow = min(
            float(sums[:, 0].min()),
            float(np.partition(every, len(every) - self.layers)[len(every) - self.layers]),
        )
        flow = max(flow, 0.0)
        return flow, int((every > flow * (1 + 1e-9)).sum())

    def found(self, bound: float) -> Staged | None:
        if self._worth(self.sums)[0] <= 0:
            return None
        cut = split(list(self.sums), self.layers)
        nodes = np.zeros((self.stages, self.types), dtype=np.int64)
        nodes[:, self.kinds] = self.nodes
        flow = min(float(self.sums[s, j - 1]) for s, j in enumerate(cut))
        return Staged(
            layers=cut, nodes=tuple(tuple(map(int, row)) for row in nodes), flow=flow, bound=max(bound, flow)
        )
