"""Machines taken one after another, for planners that count: what is held first, then the cheapest.

A node is put on a machine that is open already where slices allow it, on a held one before a new one of
the same price. The result is checked by `allocation.trimmed` like any other.
"""

from __future__ import annotations

import numpy as np

from coral.core.plan.allocation import Allocation
from coral.core.plan.hosting import is_power_of_two
from coral.core.plan.limits import exceeded
from coral.core.plan.problem import Problem
from coral.core.plan.supply import Lot
from coral.types.program import Floats, Ints


class Stock:
    """`counts` (columns,): instances placed so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.slices = problem.view.options.slices
        self.counts: Ints = np.zeros(len(problem.columns), dtype=np.int64)
        self.lots: list[tuple[Lot, ...]] = [(*site.lots, *site.shaped) for site in problem.sites]
        self.machines = [[0] * len(lots) for lots in self.lots]
        self._free: list[list[tuple[int, int]]] = [[] for _ in problem.sites]
        """Per site the (lot, GPUs free) of every machine taken."""
        options = problem.view.options
        self.limited = options.budget_usd_h is not None or any(
            one.max_gpus is not None or one.max_cost_usd_h is not None for one in problem.view.models
        )
        """Whether there is a budget or a cap: then what goes over it has no room."""
        self._shaped: dict[str, tuple[int, int]] = {}
        """Where in `_free` a machine that running nodes sit on is: site and position."""

    @property
    def allocation(self) -> Allocation:
        return Allocation(counts=self.counts.copy(), machines=tuple(tuple(row) for row in self.machines))

    def prices(self) -> Floats:
        """(columns,): what one instance's nodes cost by the cheapest machines of their kind, USD/h, with
        what starting it is charged; the share of a machine that a slice takes. inf where nothing fits."""
        columns = self.problem.columns
        out: Floats = np.zeros(len(columns))
        for index, lots in enumerate(self.lots):
            each = np.array([self._least(kind.gpu, kind.count, lots) for kind in self.problem.node_types])
            here = columns.domain == index
            finite = np.where(np.isfinite(each), each, 0.0)
            out[here] = columns.usage[here] @ finite
            out[here] += np.where((columns.usage[here] > 0) @ ~np.isfinite(each), np.inf, 0.0)
        return out + columns.charge

    def place(self, lines: dict[int, int]) -> bool:
        """Room for so many instances of each column, all in one domain, or for none of them."""
        columns = self.problem.columns
        sites = {int(columns.domain[line]) for line in lines}
        before = {site: (list(self.machines[site]), list(self._free[site])) for site in sites}
        if any(self.counts[line] + count > columns.upper[line] for line, count in lines.items()):
            return False
        kinds = sorted(
            (
                (self.problem.node_types[int(at)], int(columns.domain[line]))
                for line, count in lines.items()
                for at in np.flatnonzero(columns.usage[line])
                for _ in range(int(columns.usage[line, at]) * count)
            ),
            key=lambda one: -one[0].count,
        )
        if not all(self._take(site, kind.gpu, kind.count, held_only=False) for kind, site in kinds) or (
            self.limited and self._beyond(lines)
        ):
            for index, (machines, free) in before.items():
                self.machines[index], self._free[index] = machines, free
            return False
        for line, count in lines.items():
            self.counts[line] += count
        return True

    def _beyond(self, lines: dict[int, int]) -> bool:
        """Whether so many more instances, on the machines taken, go over a cap or the budget."""
        counts = self.counts.copy()
        for line, count in lines.items():
            counts[line] += count
        return bool(exceeded(self.problem, counts, self.machines))

    def keep(self, line: int) -> bool:
        """One more instance of a kept column: where its nodes are or, where that is open, on held ones."""
        columns = self.problem.columns
        group = self.problem.kept[int(columns.kept[line])]
        site = int(columns.domain[line])
        if self.counts[line] + 1 > columns.upper[line]:
            return False
        before = list(self.machines[site]), list(self._free[site])
        shaped = dict(self._shaped)
        if group.pins:
            for pin in group.pins:
                self._pin(site, pin.machine_id, pin.gpus)
        else:
            for kind, count in group.template.nodes.items():
                for _ in range(count):
                    if not self._take(site, kind.gpu, kind.count, held_only=True):
                        self.machines[site], self._free[site] = before
                        return False
        if self.limited and self._beyond({line: 1}):
            self.machines[site], self._free[site] = before
            self._shaped = shaped
            return False
        self.counts[line] += 1
        return True

    def _pin(self, site: int, machine_id: str, gpus: int) -> None:
        if machine_id not in self._shaped:
            offset = self.problem.sites[site].machine_ids.index(machine_id)
            lot = len(self.problem.sites[site].lots) + offset
            self.machines[site][lot] = 1
            self._free[site].append((lot, self.lots[site][lot].gpus))
            self._shaped[machine_id] = (site, len(self._free[site]) - 1)
        at = self._shaped[machine_id][1]
        lot, free = self._free[site][at]
        self._free[site][at] = (lot, free - gpus)

    def _shared(self, count: int) -> bool:
        return self.slices and is_power_of_two(count)

    def _fits(self, count: int, gpus: int) -> bool:
        return gpus >= count if self._shared(count) else gpus == count

    def _least(self, gpu: str, count: int, lots: tuple[Lot, ...]) -> float:
        fit = [lot for lot in lots if lot.gpu == gpu and self._fits(count, lot.gpus) and lot.limit > 0]
        return min((count * lot.price_usd_h / lot.gpus for lot in fit), default=np.inf)

    def _take(self, site: int, gpu: str, count: int, *, held_only: bool) -> bool:
        lots, free, machines = self.lots[site], self._free[site], self.machines[site]
        if self._shared(count):
            fit = [at for at, (lot, left) in enumerate(free) if lots[lot].gpu == gpu and left >= count]
            if fit:
                at = min(fit, key=lambda at: (free[at][1], at))
                free[at] = (free[at][0], free[at][1] - count)
                return True
        new = [
            lot
            for lot, one in enumerate(lots)
            if one.gpu == gpu
            and self._fits(count, one.gpus)
            and machines[lot] < one.limit
            and (one.held or not held_only)
        ]
        if not new:
            return False
        lot = min(new, key=lambda at: (lots[at].price_usd_h, not lots[at].held, lots[at].gpus, at))
        machines[lot] += 1
        free.append((lot, lots[lot].gpus - count if self._shared(count) else 0))
        return True
