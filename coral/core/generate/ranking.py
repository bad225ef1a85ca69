"""Templates of a library in the order of what they give for their price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from coral.hookspecs.planner import Library, TemplateTable
from coral.types.hardware import NodeType, Offer
from coral.types.model import Phase
from coral.types.placement import Template
from coral.types.program import Floats


class Ranked(Struct, frozen=True, kw_only=True):
    """`price_usd_h` counts a node by its share of the cheapest machine it can be on; None where none
    is on offer. `per_usd` is units of throughput × hours per USD; None at no price, or price 0."""

    template: Template
    price_usd_h: float | None
    per_usd: float | None


def node_price(kind: NodeType, offers: Sequence[Offer]) -> float:
    """USD/h of the share of the cheapest machine on offer that holds such a node; NaN where none does."""
    prices = [
        offer.price_usd_h * kind.count / offer.machine_type.gpus
        for offer in offers
        if offer.machine_type.gpu == kind.gpu and offer.machine_type.gpus >= kind.count
    ]
    return min(prices, default=float("nan"))


def best_templates(
    library: Library, model: str, phase: Phase, offers: Sequence[Offer], top: int
) -> list[Ranked]:
    """The `top` irreducible templates by throughput per USD; by throughput where prices are missing or 0."""
    table = library.table(model, phase)
    prices = _prices(table, offers)
    rows = np.flatnonzero(table.irreducible)
    priced = np.where(prices > 0, prices, np.inf)
    if not np.isfinite(priced).any():
        priced = np.ones(len(prices))
    value = table.throughput / priced
    chosen = rows[np.lexsort((-table.throughput[rows], -value[rows]))][:top]
    return [_ranked(library.template(model, phase, int(row)), float(prices[row])) for row in chosen]


def _prices(table: TemplateTable, offers: Sequence[Offer]) -> Floats:
    each = np.array([node_price(kind, offers) for kind in table.node_types])
    total: Floats = np.where(table.usage > 0, table.usage * each, 0.0).sum(axis=1)
    return total


def _ranked(template: Template, price: float) -> Ranked:
    return Ranked(
        template=template,
        price_usd_h=None if np.isnan(price) else price,
        per_usd=template.throughput / price if price > 0 else None,
    )
