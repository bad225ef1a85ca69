"""The `helix` planner: one placement of a model over many unlike nodes, for the greatest flow.

Taken (Helix, arXiv 2406.01566): over a given set of nodes, layers are placed by a mixed-integer program so
that the max flow from source to sink is greatest, and the flow is bounded by the nodes' layers per second
(`flow`, `stages`). Adapted: local search (`stage_search`) finds a placement first, and the program what it
can improve on it in time; placements are cut at stages, as everything that serves here is; T̂ by layers
held comes from the library's tables, with latency budgets and hops in it, where Helix has a typical
throughput and link capacities apart; prefill and decode are placed apart, where Helix runs both through one
placement; the node set is `clusters` or, since a plan here also rents, the cheapest nodes per layer and
second, more and more until the flow serves the demand; nodes that the flow does not need are given back.
Models take turns by priority, each phase of each over what the ones before it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from coral.core.generate.layers import template_id
from coral.core.plan.allocation import Allocation
from coral.core.plan.budget import Budget
from coral.core.plan.planners.counted import counted_plan
from coral.core.plan.planners.inline import InlineLibrary
from coral.core.plan.planners.layer_rates import in_flight, layer_rates
from coral.core.plan.planners.permissions import one_way
from coral.core.plan.planners.stage_search import searched_stages
from coral.core.plan.planners.stages import Staged, best_stages, flow_bound, placed, without_idle
from coral.core.plan.planners.stock import Stock
from coral.core.plan.problem import state
from coral.core.plan.services import Need
from coral.core.profile.throughput import ThroughputTable
from coral.errors import UsageError
from coral.hookspecs.options import near_miss
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.hardware import NodeType
from coral.types.model import Phase
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan

if TYPE_CHECKING:
    from coral.core.plan.planners.helix_options import HelixOptions

NAME = "helix"
ROUNDS = 6
"""Times that a node set is enlarged because its flow was too small."""
SERVED = 1 - 1e-9


class HelixPlanner:
    def __init__(self, options: HelixOptions) -> None:
        self._options = options

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """See `coral.hookspecs.planner.Planner`. Raises LibraryError where a model has no templates,
        UsageError where `clusters` names what there is not, SolverError where the solver fails."""
        slices = view.options.slices and self._options.slices
        seen = one_way(replace(view, options=replace(view.options, slices=slices)), ("prefill", "decode"))
        tables = {
            (one.name, phase): layer_rates(library, one, phase) for one in seen.models for phase in one.phases
        }
        self._check_names(tables)
        search = _Search(self._options, seen, library, tables, solver)
        for service in search.order():
            search.serve(service)
        return search.finished()

    def _check_names(self, tables: Mapping[tuple[str, Phase], ThroughputTable]) -> None:
        known = sorted({name for name, _ in tables} | {f"{name}/{phase}" for name, phase in tables})
        for name in self._options.clusters:
            if name not in known:
                near = near_miss(name, known)
                raise UsageError(
                    f"planner helix: clusters name {name!r}, which is no model or model/phase of the config",
                    mend=f"did you mean {near!r}?" if near else f"there are {', '.join(known)}",
                )


class _Search:
    """One node at a time is a *unit* template, so that machines are counted by `Stock` as for any plan."""

    def __init__(
        self,
        options: HelixOptions,
        view: View,
        library: Library,
        tables: dict[tuple[str, Phase], ThroughputTable],
        solver: Solver,
    ) -> None:
        self.options, self.view, self.library, self.tables, self.solver = (
            options,
            view,
            library,
            tables,
            solver,
        )
        self.budget = Budget.of(view.options)
        units = {key: _units(view, key, table.node_types) for key, table in tables.items()}
        self.problem = state(view, InlineLibrary(units), reduce=False)
        self.stock = Stock(self.problem)
        self.prices = self.stock.prices()
        self.made: dict[tuple[str, Phase], list[tuple[Template, int]]] = {}
        """Templates with the site they run in."""
        self.used: list[int] = []
        """Unit columns of the nodes in use, one entry a node."""
        self.notes: list[str] = []
        self.kept = self._keep()

    def order(self) -> list[int]:
        models = self.view.models
        wanted = [i for i, need in enumerate(self.problem.needs) if need.demand > 0]
        return sorted(wanted, key=lambda i: (-models[self.problem.needs[i].model].priority, i))

    def serve(self, service: int) -> None:
        """Place a (model, phase), domain by domain, the cheapest first, until its demand is served."""
        need = self.problem.needs[service]
        left = need.demand - self.kept[service].sum()
        for site in self._sites(service):
            if left <= need.demand * (1 - SERVED):
                return
            found = self._place(service, site, left)
            if found is not None:
                left -= found

    def finished(self) -> Plan:
        units = self.stock.allocation
        templates = {key: [one for one, _ in some] for key, some in self.made.items()}
        library = InlineLibrary(templates)
        problem = state(self.view, library, reduce=False)
        counts = np.zeros(len(problem.columns), dtype=np.int64)
        columns = problem.columns
        for (model, phase), some in self.made.items():
            service = next(i for i, n in enumerate(problem.needs) if (n.name, n.phase) == (model, phase))
            for row, (_, site) in enumerate(some):
                here = (columns.service == service) & (columns.domain == site) & (columns.row == row)
                counts[np.flatnonzero(here & (columns.kept < 0))] += 1
        kept = np.flatnonzero(columns.kept >= 0)
        counts[kept] = units.counts[np.flatnonzero(self.problem.columns.kept >= 0)]
        allocation = Allocation(counts=counts, machines=units.machines)
        note = "placements for the greatest flow were made one after another: not proven cheapest"
        plan = counted_plan(problem, library, allocation, planner=NAME, note=note)
        return replace(plan, notes=(*self.notes, *plan.notes))

    def _keep(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """What runs is kept as far as it is of use; returns what it serves."""
        columns = self.problem.columns
        able = np.zeros((len(self.problem.needs), len(self.problem.sites)))
        for line in np.flatnonzero(columns.kept >= 0):
            service = int(columns.service[line])
            demand = self.problem.needs[service].demand
            while able[service].sum() < demand * SERVED and self.stock.keep(int(line)):
                able[service, columns.domain[line]] += columns.throughput[line]
        return able

    def _sites(self, service: int) -> list[int]:
        """Where a layer and second of it costs least first; where another phase of the model is, before."""
        need = self.problem.needs[service]
        there = {site for (model, _), some in self.made.items() if model == need.name for _, site in some}
        worth = self._worth(need)

        def price(site: int) -> float:
            lines = self._lines(service, site)
            return min(
                (self.prices[line] / worth[kind] for kind, line in lines.items() if worth[kind] > 0),
                default=np.inf,
            )

        return sorted(range(len(self.problem.sites)), key=lambda site: (site not in there, price(site), site))

    def _place(self, service: int, site: int, wanted: float) -> float | None:
        """One placement in a domain; what it serves, or None."""
        need = self.problem.needs[service]
        table = self.tables[need.name, need.phase]
        given = self._given(need, table)
        best: Staged | None = None
        target = wanted
        taken: list[int] = []
        for _ in range(ROUNDS):
            more = self._reserve(service, site, target, taken, given)
            taken += more
            if not taken or (best is not None and not more):
                break
            best = self._best(table, service, taken)
            if given is not None or (best is not None and best.flow >= wanted * SERVED):
                break
            reached = best.flow if best is not None else 0.0
            have = self._capacity(service, site, taken)
            target = have * (max(wanted / reached, 1.02) if reached > 0 else 1.5)
        self._return(taken)
        if best is None:
            return None
        best = self._improved(table, service, taken, best)
        lines = self._lines(service, site)
        found = best
        if given is None:
            prices = np.array(
                [self.prices[lines[kind]] if kind in lines else 0.0 for kind in range(len(table.node_types))]
            )
            found = without_idle(table, best, np.where(np.isfinite(prices), prices, 0.0), wanted)
        nodes = [
            lines[k] for k in range(len(table.node_types)) for _ in range(sum(s[k] for s in found.nodes))
        ]
        self.used += nodes
        if not self._replaced():
            return None
        self.made.setdefault((need.name, need.phase), []).append((self._template(need, table, found), site))
        self.notes.append(
            f"{need.name} {need.phase}: a flow of {found.flow:.6g}, at most {best.bound:.6g} with its nodes"
        )
        return found.flow * self._up(nodes)

    def _best(self, table: ThroughputTable, service: int, taken: list[int]) -> Staged | None:
        """By local search, for every number of stages."""
        available = self._available(service, taken)
        most = min(self.options.max_stages, table.max_stages)
        found = [searched_stages(table, stages, available) for stages in range(1, most + 1)]
        return max((one for one in found if one is not None), key=lambda one: one.flow, default=None)

    def _improved(self, table: ThroughputTable, service: int, taken: list[int], best: Staged) -> Staged:
        """By the integer program, within a share of the time, and with the bound of the nodes' work."""
        available = self._available(service, taken)
        most = min(self.options.max_stages, table.max_stages)
        share = self.budget.part(1.0 / max(len(self.order()), 1))
        for stages in range(1, most + 1):
            if not share.exhausted:
                above = best.flow * (1 + 1e-6)
                part = share.part(1.0 / most)
                found = best_stages(table, stages, available, self.solver, part, above=above)
                best = found or best
        limits = [flow_bound(table, stages, available) for stages in range(1, most + 1)]
        return replace(best, bound=max(limits))

    def _available(self, service: int, taken: list[int]) -> dict[int, int]:
        """Nodes by the table's node types."""
        site = int(self.problem.columns.domain[taken[0]])
        kinds = {line: kind for kind, line in self._lines(service, site).items()}
        available: dict[int, int] = {}
        for line in taken:
            available[kinds[line]] = available.get(kinds[line], 0) + 1
        return available

    def _given(self, need: Need, table: ThroughputTable) -> dict[int, int] | None:
        clusters = self.options.clusters
        named = clusters.get(f"{need.name}/{need.phase}", clusters.get(need.name))
        if named is None:
            return None
        found = {}
        for text, count in named.items():
            try:
                kind = NodeType.parse(text)
            except ValueError as error:
                raise UsageError(f"planner helix: clusters of {need.name}: {error}") from error
            if kind not in table.node_types:
                known = ", ".join(map(str, table.node_types))
                raise UsageError(
                    f"planner helix: clusters of {need.name}: no node type {text} (there are {known})"
                )
            found[table.node_types.index(kind)] = count
        return found

    def _reserve(
        self, service: int, site: int, target: float, taken: list[int], given: dict[int, int] | None
    ) -> list[int]:
        """Nodes to add: those of the cluster that was given, or the cheapest until the flow's bound is
        `target`."""
        lines = self._lines(service, site)
        more: list[int] = []
        if given is not None:
            wanted = [lines[kind] for kind, n in sorted(given.items()) if kind in lines for _ in range(n)]
            return [line for line in wanted if not taken and self.stock.place({line: 1})]
        need = self.problem.needs[service]
        worth = self._worth(need)
        have = self._capacity(service, site, taken)
        ranked = sorted(
            (kind for kind in lines if worth[kind] > 0 and np.isfinite(self.prices[lines[kind]])),
            key=lambda kind: (self.prices[lines[kind]] / worth[kind], kind),
        )
        for kind in ranked:
            while have < target and len(taken) + len(more) < self.options.max_nodes:
                if not self.stock.place({lines[kind]: 1}):
                    break
                more.append(lines[kind])
                have += worth[kind]
        return more

    def _up(self, lines: list[int]) -> float:
        """The share of time that a placement over these unit columns is up: it is lost with any of its nodes,
        a unit with one."""
        lost = sum(1.0 / float(self.problem.columns.throughput[line]) - 1.0 for line in lines)
        return 1.0 / (1.0 + lost)

    def _capacity(self, service: int, site: int, taken: list[int]) -> float:
        """The flow that reserved nodes have at best."""
        worth = self._worth(self.problem.needs[service])
        kinds = {line: kind for kind, line in self._lines(service, site).items()}
        return float(sum(worth[kinds[line]] for line in taken))

    def _worth(self, need: Need) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Per node type its share of a flow at best: max over S and j of j·T̂_j / L."""
        table = self.tables[need.name, need.phase]
        most = min(self.options.max_stages, table.max_stages)
        held = np.arange(1, table.layers + 1)[:, None]
        best: np.ndarray[tuple[int], np.dtype[np.float64]] = (table.rate[:most] * held).max(axis=(0, 1, 2))
        return best / table.layers

    def _lines(self, service: int, site: int) -> dict[int, int]:
        """Unit columns by the table's node type."""
        columns, need = self.problem.columns, self.problem.needs[service]
        table = self.tables[need.name, need.phase]
        here = np.flatnonzero((columns.kept < 0) & (columns.service == service) & (columns.domain == site))
        kinds = {self.problem.node_types[int(np.argmax(columns.usage[j]))]: int(j) for j in here}
        return {at: kinds[kind] for at, kind in enumerate(table.node_types) if kind in kinds}

    def _return(self, taken: list[int]) -> None:
        """Give back what was reserved for a placement."""
        if taken:
            self._replaced()

    def _replaced(self) -> bool:
        """Count the machines anew: what is kept, then the nodes in use, the largest first."""
        self.stock = Stock(self.problem)
        self._keep()
        columns = self.problem.columns
        sizes = np.array([kind.count for kind in self.problem.node_types])
        ordered = sorted(self.used, key=lambda line: (-int(columns.usage[line] @ sizes), line))
        return all(self.stock.place({line: 1}) for line in ordered)

    def _template(self, need: Need, table: ThroughputTable, found: Staged) -> Template:
        placement = placed(table, found)
        return Template(
            id=template_id(need.name, need.phase, placement),
            model=need.name,
            phase=need.phase,
            slo=self.view.models[need.model].slo,
            placement=placement,
            throughput=placement.throughput,
            max_concurrency=placement.throughput * in_flight(self.library, need.name, need.phase),
        )


def _units(view: View, key: tuple[str, Phase], kinds: tuple[NodeType, ...]) -> list[Template]:
    model = next(one for one in view.models if one.name == key[0])
    return [
        Template(
            id=f"{kind}",
            model=key[0],
            phase=key[1],
            slo=model.slo,
            placement=Placement(
                stages=(
                    Stage(
                        first_layer=0,
                        end_layer=model.shape.layers,
                        nodes=(StageNode(node_type=kind, throughput=1.0),),
                    ),
                )
            ),
            throughput=1.0,
        )
        for kind in kinds
    ]


def build(options: HelixOptions) -> HelixPlanner:
    return HelixPlanner(options)
