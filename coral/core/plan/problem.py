"""One epoch's planning problem as arrays: services, supply, columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from coral.core.plan import reductions
from coral.core.plan.hosting import Hosting, hosting
from coral.core.plan.running import Kept, keepable
from coral.core.plan.services import Need, initialization_share, needs
from coral.core.plan.supply import Lot, Supply, lot, machine_kind, supply
from coral.hookspecs.planner import Library, TemplateTable, View
from coral.types.hardware import Domain, NodeType
from coral.types.program import Floats, Ints


class Columns(Struct, frozen=True, kw_only=True, eq=False):
    """n columns ν. `kept[j]` indexes the problem's kept groups, -1 for new instances, whose template is
    `row[j]` of the service's table. `usage` (n, node types); `charge`: initialization of one, USD/h."""

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
    """A domain: its fresh lots, the held machines that running nodes sit on, and its hosting rows.

    `hosting` counts over `lots + shaped`; a shaped lot is one machine, `machine_ids` names it.
    """

    domain: Domain
    lots: tuple[Lot, ...]
    shaped: tuple[Lot, ...]
    machine_ids: tuple[str, ...]
    hosting: Hosting


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
    tighten: bool


def state(view: View, library: Library, *, reduce: bool = True) -> Problem:
    """Everything that both forms and the greedy fall-back start from."""
    slices = view.options.slices
    wanted = needs(view)
    tables = tuple(library.table(need.name, need.phase) for need in wanted)
    kept = keepable(view, wanted, slices=slices)
    have = supply(view)
    running_types = {kind for group in kept for kind in group.template.nodes}
    node_types = tuple(sorted({kind for table in tables for kind in table.node_types} | running_types))
    sites = tuple(_site(view, have, domain, kept, node_types) for domain in have.domains)
    shares = [
        initialization_share(view.models[need.model], view) if need.demand > 0 else 0.0 for need in wanted
    ]
    builder = _ColumnBuilder(wanted, tables, node_types, sites, have, shares, slices, reduce)
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
        tighten=reduce,
    )


def _site(
    view: View, have: Supply, domain: Domain, kept: Sequence[Kept], node_types: Sequence[NodeType]
) -> Site:
    """Held machines with pinned nodes leave their lot and become lots of one."""
    pinned = {pin.machine_id for group in kept for pin in group.pins}
    machines = sorted((m for m in view.machines if m.id in pinned and m.domain == domain), key=lambda m: m.id)
    shaped = tuple(lot(machine_kind(m), held=True, limit=1) for m in machines)
    fresh = []
    for one in have.of(domain):
        taken = sum(apart.kind == one.kind for apart in shaped) if one.held else 0
        if one.limit > taken:
            fresh.append(replace(one, limit=one.limit - taken))
    return Site(
        domain=domain,
        lots=tuple(fresh),
        shaped=shaped,
        machine_ids=tuple(m.id for m in machines),
        hosting=hosting(node_types, (*fresh, *shaped), slices=view.options.slices),
    )


class _ColumnBuilder:
    def __init__(
        self,
        wanted: Sequence[Need],
        tables: Sequence[TemplateTable],
        node_types: Sequence[NodeType],
        sites: Sequence[Site],
        have: Supply,
        shares: Sequence[float],
        slices: bool,
        reduce: bool,
    ) -> None:
        self.wanted, self.tables, self.node_types = wanted, tables, node_types
        self.sites, self.shares, self.reduce = sites, shares, reduce
        self.at = {kind: index for index, kind in enumerate(node_types)}
        self.prices = [
            np.array([_node_charge(have, site.domain, kind, slices) for kind in node_types]) for site in sites
        ]

    def build(self, kept: Sequence[Kept]) -> Columns:
        blocks = [
            self._new(service, index)
            for service in range(len(self.wanted))
            for index in range(len(self.sites))
        ]
        blocks.append(self._kept(kept))
        joined = {
            name: np.concatenate([getattr(block, name) for block in blocks])
            for name in Columns.__struct_fields__
        }
        return Columns(**joined)

    def _new(self, service: int, index: int) -> Columns:
        table, site = self.tables[service], self.sites[index]
        rows = reductions.irreducible(table, reduce=self.reduce)
        if self.wanted[service].demand <= 0:
            rows = rows[:0]
        usage = np.zeros((len(rows), len(self.node_types)), dtype=np.int16)
        usage[:, [self.at[kind] for kind in table.node_types]] = table.usage[rows]
        throughput = table.throughput[rows]
        most = reductions.most_hosted(usage, site.hosting, site.hosting.room((*site.lots, *site.shaped)))
        if self.reduce:
            fits = most >= 1
            rows, usage, throughput, most = rows[fits], usage[fits], throughput[fits], most[fits]
            most = np.minimum(most, reductions.most_needed(throughput, self.wanted[service].demand))
        n = len(rows)
        return Columns(
            service=np.full(n, service),
            domain=np.full(n, index),
            row=rows,
            kept=np.full(n, -1),
            usage=usage,
            throughput=throughput,
            upper=most,
            charge=self.shares[service] * (usage @ self.prices[index]),
        )

    def _kept(self, kept: Sequence[Kept]) -> Columns:
        domains = {site.domain: index for index, site in enumerate(self.sites)}
        chosen = [index for index, group in enumerate(kept) if group.domain in domains]
        usage = np.zeros((len(chosen), len(self.node_types)), dtype=np.int16)
        for line, index in enumerate(chosen):
            for kind, count in kept[index].template.nodes.items():
                usage[line, self.at[kind]] = count
        return Columns(
            service=np.array([kept[i].service for i in chosen], dtype=np.int64),
            domain=np.array([domains[kept[i].domain] for i in chosen], dtype=np.int64),
            row=np.full(len(chosen), -1),
            kept=np.array(chosen, dtype=np.int64),
            usage=usage,
            throughput=np.array([kept[i].template.throughput for i in chosen], dtype=np.float64),
            upper=np.array([float(kept[i].count) for i in chosen], dtype=np.float64),
            charge=np.zeros(len(chosen)),
        )


def _node_charge(have: Supply, domain: Domain, kind: NodeType, slices: bool) -> float:
    """What initialization is charged on: p_c of a whole machine, or κ_k = k × the GPU's mean price."""
    if slices:
        return kind.count * have.gpu_price(domain, kind.gpu)
    return have.node_price(domain, kind.gpu, kind.count)
