"""One epoch's planning problem as arrays: services, supply, columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from coral.core.plan import reductions
from coral.core.plan.hosting import Hosting, hosting, is_power_of_two
from coral.core.plan.markets import markets_apart, restart_h
from coral.core.plan.running import Kept, keepable
from coral.core.plan.services import Need, initialization_share, needs
from coral.core.plan.supply import Lot, Supply, lot, machine_kind, supply
from coral.hookspecs.planner import Library, TemplateTable, View
from coral.types.hardware import Domain, Market, NodeType
from coral.types.program import Floats, Ints


class Columns(Struct, frozen=True, kw_only=True, eq=False):
    """n columns ν. `kept[j]` indexes the problem's kept groups, -1 for new instances, whose template is
    `row[j]` of the service's table. `domain[j]` indexes the sites. `usage` (n, node types); `throughput`:
    what is to be expected of one, A·T on spot machines; `charge`: initialization of one, USD/h, that after
    preemptions included."""

    service: Ints
    domain: Ints
    row: Ints
    kept: Ints
    usage: NDArray[np.int16]
    throughput: Floats
    upper: Floats
    charge: Floats

    def __len__(self) -> int:
        return len(self.service)


class Site(Struct, frozen=True, kw_only=True, eq=False):
    """A domain, or the machines of one market there where markets are planned apart: its fresh lots, the
    held machines that running nodes sit on, and its hosting rows.

    `hosting` counts over `lots + shaped`; a shaped lot is one machine, `machine_ids` names it. `prices`
    (node types,): κ_k of a node there, what a model's share of the machines is counted by.
    """

    domain: Domain
    market: Market | None
    lots: tuple[Lot, ...]
    shaped: tuple[Lot, ...]
    machine_ids: tuple[str, ...]
    hosting: Hosting
    prices: Floats

    def lot(self, index: int) -> Lot:
        """Of `lots`, or past them of `shaped`."""
        return self.lots[index] if index < len(self.lots) else self.shaped[index - len(self.lots)]


class Problem(Struct, frozen=True, kw_only=True, eq=False):
    view: View
    needs: tuple[Need, ...]
    node_types: tuple[NodeType, ...]
    tables: tuple[TemplateTable, ...]
    kept: tuple[Kept, ...]
    sites: tuple[Site, ...]
    columns: Columns
    columns_full: int
    machine_share: float
    """K of a new machine: that of the model that takes longest; 0 in the paper's form."""
    restart_h: float
    """R of a spot machine that is lost: as above, in hours."""
    places: Ints
    """(sites,): the domain of each site as a number; prefill and decode are coupled within one."""
    tighten: bool

    def machine_charge(self, lot: Lot) -> float:
        """USD/h of initialization for one machine: when it is new, and after each preemption."""
        new = 0.0 if lot.held else self.machine_share
        return lot.price_usd_h * (new + lot.preemption_per_h * self.restart_h)


def state(view: View, library: Library, *, reduce: bool = True) -> Problem:
    """Everything that both forms and the greedy fall-back start from."""
    slices = view.options.slices
    wanted = needs(view)
    tables = tuple(library.table(need.name, need.phase) for need in wanted)
    kept = keepable(view, wanted, slices=slices)
    have = supply(view)
    running_types = {kind for group in kept for kind in group.template.nodes}
    node_types = tuple(sorted({kind for table in tables for kind in table.node_types} | running_types))
    apart = markets_apart(view)
    sites = tuple(
        _site(view, have, domain, market, kept, node_types)
        for domain in have.domains
        for market in (have.markets(domain) if apart else (None,))
    )
    shares = [
        initialization_share(view.models[need.model], view) if need.demand > 0 else 0.0 for need in wanted
    ]
    restarts = [restart_h(view.models[need.model]) if need.demand > 0 else 0.0 for need in wanted]
    builder = _ColumnBuilder(view, wanted, tables, node_types, sites, have, reduce)
    domains = {domain: place for place, domain in enumerate(have.domains)}
    return Problem(
        view=view,
        needs=wanted,
        node_types=node_types,
        tables=tables,
        kept=kept,
        sites=sites,
        columns=builder.build(kept),
        columns_full=sum(len(table.throughput) for table in tables) * len(sites) + len(kept),
        machine_share=max(shares, default=0.0) if slices else 0.0,
        restart_h=max(restarts, default=0.0) if slices else 0.0,
        places=np.array([domains[site.domain] for site in sites], dtype=np.int64),
        tighten=reduce,
    )


def _site(
    view: View,
    have: Supply,
    domain: Domain,
    market: Market | None,
    kept: Sequence[Kept],
    node_types: Sequence[NodeType],
) -> Site:
    """Held machines with pinned nodes leave their lot and become lots of one."""
    pinned = {pin.machine_id for group in kept for pin in group.pins}
    machines = sorted(
        (m for m in view.machines if m.id in pinned and m.domain == domain and market in (None, m.market)),
        key=lambda m: m.id,
    )
    lots = have.of(domain, market=market)
    rates = {one.kind: one.preemption_per_h for one in lots}
    shaped = tuple(
        lot(machine_kind(m), held=True, limit=1, preemption_per_h=rates[machine_kind(m)]) for m in machines
    )
    fresh = []
    for one in lots:
        taken = sum(apart.kind == one.kind for apart in shaped) if one.held else 0
        if one.limit > taken:
            fresh.append(replace(one, limit=one.limit - taken))
    slices = view.options.slices
    return Site(
        domain=domain,
        market=market,
        lots=tuple(fresh),
        shaped=shaped,
        machine_ids=tuple(m.id for m in machines),
        hosting=hosting(node_types, (*fresh, *shaped), slices=slices),
        prices=np.array([_share_price(have, domain, market, kind, slices) for kind in node_types]),
    )


class _ColumnBuilder:
    def __init__(
        self,
        view: View,
        wanted: Sequence[Need],
        tables: Sequence[TemplateTable],
        node_types: Sequence[NodeType],
        sites: Sequence[Site],
        have: Supply,
        reduce: bool,
    ) -> None:
        self.view, self.wanted, self.tables, self.node_types = view, wanted, tables, node_types
        self.sites, self.reduce = sites, reduce
        self.at = {kind: index for index, kind in enumerate(node_types)}
        slices = view.options.slices
        self.prices = [
            np.array([_node_charge(have, site.domain, site.market, kind, slices) for kind in node_types])
            for site in sites
        ]
        self.losses = [np.array([_loss(site, kind, slices) for kind in node_types]) for site in sites]

    def build(self, kept: Sequence[Kept]) -> Columns:
        blocks = [
            self._new(service, index)
            for service in range(len(self.wanted))
            for index in range(len(self.sites))
        ]
        blocks += [self._kept(kept, index) for index in range(len(self.sites))]
        blocks = blocks or [self._none()]
        joined = {
            name: np.concatenate([getattr(block, name) for block in blocks])
            for name in Columns.__struct_fields__
        }
        return Columns(**joined)

    def _none(self) -> Columns:
        """Where nothing is on offer or held."""
        numbers, figures = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Columns(
            service=numbers,
            domain=numbers,
            row=numbers,
            kept=numbers,
            usage=np.zeros((0, len(self.node_types)), dtype=np.int16),
            throughput=figures,
            upper=figures,
            charge=figures,
        )

    def _new(self, service: int, index: int) -> Columns:
        table, site, need = self.tables[service], self.sites[index], self.wanted[service]
        spec = self.view.models[need.model]
        rows = reductions.irreducible(table, reduce=self.reduce)
        if need.demand <= 0:
            rows = rows[:0]
        usage = np.zeros((len(rows), len(self.node_types)), dtype=np.int16)
        usage[:, [self.at[kind] for kind in table.node_types]] = table.usage[rows]
        most = reductions.most_hosted(usage, site.hosting, site.hosting.room((*site.lots, *site.shaped)))
        if self.reduce:
            fits = most >= 1
            rows, usage, most = rows[fits], usage[fits], most[fits]
        throughput, again = self._expected(table.throughput[rows], usage, index, restart_h(spec))
        if self.reduce and not spec.survive_machine:
            most = np.minimum(most, reductions.most_needed(throughput, need.demand))
        n = len(rows)
        share = initialization_share(spec, self.view) if need.demand > 0 else 0.0
        return Columns(
            service=np.full(n, service),
            domain=np.full(n, index),
            row=rows,
            kept=np.full(n, -1),
            usage=usage,
            throughput=throughput,
            upper=most,
            charge=share * (usage @ self.prices[index]) + again,
        )

    def _kept(self, kept: Sequence[Kept], index: int) -> Columns:
        site = self.sites[index]
        chosen = [
            i for i, group in enumerate(kept) if (group.domain, group.market) == (site.domain, site.market)
        ]
        usage = np.zeros((len(chosen), len(self.node_types)), dtype=np.int16)
        throughput = np.zeros(len(chosen))
        again = np.zeros(len(chosen))
        for line, i in enumerate(chosen):
            template = kept[i].template
            for kind, count in template.nodes.items():
                usage[line, self.at[kind]] = count
            restart = restart_h(self.view.models[self.wanted[kept[i].service].model])
            throughput[line : line + 1], again[line : line + 1] = self._expected(
                np.array([template.throughput]), usage[line : line + 1], index, restart
            )
        return Columns(
            service=np.array([kept[i].service for i in chosen], dtype=np.int64),
            domain=np.full(len(chosen), index),
            row=np.full(len(chosen), -1),
            kept=np.array(chosen, dtype=np.int64),
            usage=usage,
            throughput=throughput,
            upper=np.array([float(kept[i].count) for i in chosen], dtype=np.float64),
            charge=again,
        )

    def _expected(
        self, throughput: Floats, usage: NDArray[np.int16], index: int, restart: float
    ) -> tuple[Floats, Floats]:
        """(A_τ T(τ), λ_τ R Σ_k U_k κ_k) of columns of a site."""
        per_restart = (usage @ self.losses[index]) * restart
        return throughput / (1.0 + per_restart), per_restart * (usage @ self.prices[index])


def _loss(site: Site, kind: NodeType, slices: bool) -> float:
    """λ_k: preemptions per hour of a node, on the worst machine there that can host it."""
    shared = slices and is_power_of_two(kind.count)
    lots = [
        lot
        for lot in (*site.lots, *site.shaped)
        if lot.gpu == kind.gpu and (lot.gpus >= kind.count if shared else lot.gpus == kind.count)
    ]
    return max((lot.preemption_per_h for lot in lots), default=0.0)


def _node_charge(have: Supply, domain: Domain, market: Market | None, kind: NodeType, slices: bool) -> float:
    """What initialization is charged on: p_c of a whole machine, or κ_k = k × the GPU's mean price."""
    if slices:
        return kind.count * have.gpu_price(domain, kind.gpu, market)
    return have.node_price(domain, kind.gpu, kind.count, market)


def _share_price(have: Supply, domain: Domain, market: Market | None, kind: NodeType, slices: bool) -> float:
    """What a node's share of its machine costs: k × the GPU's mean price, or that of whole machines."""
    if slices:
        return kind.count * have.gpu_price(domain, kind.gpu, market)
    return have.mean_node_price(domain, kind.gpu, kind.count, market)
