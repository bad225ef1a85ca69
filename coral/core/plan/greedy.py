"""Where the solver fails and nothing runs: templates one by one, cheapest throughput first.

No bound, no optimality: a plan that holds, made by counting. The model that is served least goes next (by
priority); of its phases the one that lags; of the templates the one with the least price per throughput
that is still of use; on machines already taken before new ones, of those the cheapest.
"""

from __future__ import annotations

import numpy as np

from coral.core.plan.allocation import Allocation, trimmed
from coral.core.plan.answer import plan_of, services
from coral.core.plan.hosting import is_power_of_two
from coral.core.plan.limits import exceeded, model_of
from coral.core.plan.missing import shortages
from coral.core.plan.problem import Problem, state
from coral.core.plan.services import coupled
from coral.errors import SolverError
from coral.hookspecs.planner import Library, View
from coral.types.plan import Plan
from coral.types.program import Floats, Ints

NAME = "greedy"
MOST_INSTANCES = 100_000


def greedy(problem: Problem) -> Allocation:
    return _Greedy(problem).run()


def greedy_plan(view: View, library: Library) -> Plan:
    """A plan without a solver, checked like any other. Raises LibraryError where a model has no templates."""
    problem = state(view, library)
    found, faults = trimmed(problem, greedy(problem))
    if faults:
        raise SolverError("the greedy plan does not hold: " + "; ".join(faults))
    notes = ["templates were chosen greedily, without a solver: not proven optimal"]
    notes += shortages(problem, services(problem, found))
    return plan_of(problem, library, found, planner=NAME, certificate=None, notes=notes)


class _Greedy:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.slices = problem.view.options.slices
        columns = problem.columns
        self.counts: Ints = np.zeros(len(columns), dtype=np.int64)
        self.alive = (columns.kept < 0) & (columns.upper >= 1)
        self.able = np.zeros((len(problem.needs), len(problem.sites)))
        """By site: markets that are planned apart are not counted together, which only serves less."""
        self.machines = [[0] * (len(site.lots) + len(site.shaped)) for site in problem.sites]
        self.open: list[list[tuple[int, int]]] = [[] for _ in problem.sites]
        """Per site the (lot, free GPUs) of every machine taken."""
        self.price = self._prices()
        self.models = model_of(problem)
        self.limited = problem.view.options.budget_usd_h is not None or any(
            one.max_gpus is not None or one.max_cost_usd_h is not None for one in problem.view.models
        )

    def run(self) -> Allocation:
        for _ in range(MOST_INSTANCES):
            line = self._next()
            if line is None:
                break
            if self._place(line):
                self.counts[line] += 1
                columns = self.problem.columns
                self.able[columns.service[line], columns.domain[line]] += columns.throughput[line]
            else:
                self._rule_out(line)
        return Allocation(counts=self.counts, machines=tuple(tuple(row) for row in self.machines))

    def _rule_out(self, line: int) -> None:
        """A column without room, and all that need the same nodes there and more: room only gets less."""
        columns = self.problem.columns
        more = (columns.usage >= columns.usage[line]).all(axis=1)
        if self.limited:  # a model at its cap leaves room for others
            more &= self.models == self.models[line]
        self.alive &= ~(more & (columns.domain == columns.domain[line]))

    def _prices(self) -> Floats:
        """What a column's nodes cost by the cheapest machines of their kind."""
        problem = self.problem
        out = np.zeros(len(problem.columns))
        for index, site in enumerate(problem.sites):
            lots = (*site.lots, *site.shaped)
            each = np.zeros(len(problem.node_types))
            for at, kind in enumerate(problem.node_types):
                fit = [lot for lot in lots if lot.gpu == kind.gpu and self._fits(kind.count, lot.gpus)]
                each[at] = min((kind.count * lot.price_usd_h / lot.gpus for lot in fit), default=0.0)
            here = problem.columns.domain == index
            out[here] = problem.columns.usage[here] @ each
        return out

    def _fits(self, count: int, gpus: int) -> bool:
        return gpus >= count if self.slices and is_power_of_two(count) else gpus == count

    def _next(self) -> int | None:
        """The column to add an instance of, or None when all is served or nothing fits any more."""
        waiting = sorted(
            {need.model for need in self.problem.needs if need.demand > 0},
            key=lambda m: (self._fraction(m) / self.problem.view.models[m].priority, m),
        )
        for model in waiting:
            if self._fraction(model) >= 1 - 1e-9:
                continue
            for own in self._ways(model):
                for service, domain in self._gaps(model, own):
                    line = self._best(service, domain)
                    if line is not None:
                        return line
        return None

    def _ways(self, model: int) -> list[list[int]]:
        """The services that together serve the model: both phases, mixed, or either of these."""
        needs = self.problem.needs
        mine = [i for i, need in enumerate(needs) if need.model == model and need.demand > 0]
        mixed = [i for i in mine if needs[i].phase == "mixed"]
        return [way for way in (mixed, [i for i in mine if i not in mixed]) if way]

    def _fraction(self, model: int) -> float:
        total = 0.0
        for own in self._ways(model):
            able = np.array([self.able[i] / self.problem.needs[i].demand for i in own])
            total += float(able.min(axis=0).sum() if self._apart(model, own) else able.sum(axis=1).min())
        return total

    def _apart(self, model: int, own: list[int]) -> bool:
        return len(own) > 1 and coupled(self.problem.view.models[model], self.problem.view)

    def _gaps(self, model: int, own: list[int]) -> list[tuple[int, int]]:
        """(service, domain) to try, the lagging phase first; domain -1 is any. Coupled phases stay in a
        domain, the cheapest first, until one of them finds no more room there."""
        if not self._apart(model, own):
            return [
                (i, -1) for i in sorted(own, key=lambda i: self.able[i].sum() / self.problem.needs[i].demand)
            ]
        found = []
        for domain in self._domains(own):
            share = {i: self.able[i, domain] / self.problem.needs[i].demand for i in own}
            if all(self._best(i, domain) is not None or share[i] > min(share.values()) for i in own):
                found.append((min(own, key=lambda i: share[i]), domain))
        return found

    def _domains(self, own: list[int]) -> list[int]:
        def price(domain: int) -> float:
            lines = [self._best(i, domain) for i in own]
            columns = self.problem.columns
            return sum(
                np.inf
                if line is None
                else self.price[line] / min(columns.throughput[line] / self.problem.needs[i].demand, 1.0)
                for i, line in zip(own, lines, strict=True)
            )

        return sorted(range(len(self.problem.sites)), key=lambda domain: (price(domain), domain))

    def _best(self, service: int, domain: int) -> int | None:
        columns = self.problem.columns
        lines = np.flatnonzero(
            self.alive & (columns.service == service) & ((columns.domain == domain) | (domain < 0))
        )
        if not lines.size:
            return None
        demand = self.problem.needs[service].demand
        left = max(demand - self.able[service].sum(), demand * 1e-3)
        useful = np.minimum(columns.throughput[lines], left)
        order = np.lexsort((lines, -columns.throughput[lines], self.price[lines] / useful))
        return int(lines[order[0]])

    def _place(self, line: int) -> bool:
        """Take room for every node of one instance, or for none."""
        columns, problem = self.problem.columns, self.problem
        index = int(columns.domain[line])
        machines, opened = list(self.machines[index]), list(self.open[index])
        kinds = [
            problem.node_types[int(at)]
            for at in np.flatnonzero(columns.usage[line])
            for _ in range(int(columns.usage[line, at]))
        ]
        for kind in sorted(kinds, key=lambda kind: -kind.count):
            if not self._take(index, kind.gpu, kind.count, machines, opened):
                return False
        counts = self.counts.copy()
        counts[line] += 1
        rows = [machines if at == index else row for at, row in enumerate(self.machines)]
        if self.limited and exceeded(problem, counts, rows):
            return False
        self.machines[index], self.open[index] = machines, opened
        return True

    def _take(
        self, index: int, gpu: str, count: int, machines: list[int], opened: list[tuple[int, int]]
    ) -> bool:
        site = self.problem.sites[index]
        lots = (*site.lots, *site.shaped)
        shared = self.slices and is_power_of_two(count)
        fit = [
            at for at, (lot, free) in enumerate(opened) if lots[lot].gpu == gpu and free >= count and shared
        ]
        if fit:
            at = min(fit, key=lambda at: (opened[at][1], at))
            opened[at] = (opened[at][0], opened[at][1] - count)
            return True
        new = [
            lot
            for lot, one in enumerate(lots)
            if one.gpu == gpu and self._fits(count, one.gpus) and machines[lot] < one.limit
        ]
        if not new:
            return False
        lot = min(new, key=lambda at: (lots[at].price_usd_h, lots[at].gpus, not lots[at].held, at))
        machines[lot] += 1
        opened.append((lot, lots[lot].gpus - count if shared else 0))
        return True
