"""Templates of a library in the order of what they give for their price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from coral.core.generate.prices import domains_of, template_prices
from coral.hookspecs.planner import Library
from coral.types.hardware import Offer
from coral.types.model import Phase
from coral.types.placement import Template


class Ranked(Struct, frozen=True, kw_only=True):
    """`price_usd_h` counts each node by its share of the cheapest machine it can be on, all in the domain
    `where`; None where no domain offers all nodes. `per_usd` is throughput per USD/h; None at no price,
    or price 0."""

    template: Template
    price_usd_h: float | None
    per_usd: float | None
    where: str | None


def best_templates(
    library: Library, model: str, phase: Phase, offers: Sequence[Offer], top: int
) -> list[Ranked]:
    """The `top` irreducible templates by throughput per USD: at first those at no cost, at last those that no
    domain offers, each of them by throughput."""
    table = library.table(model, phase)
    prices, at = template_prices(table, offers)
    domains = domains_of(offers)
    rows = np.flatnonzero(table.irreducible)
    value = np.where(prices == 0, np.inf, 0.0)
    np.divide(table.throughput, prices, out=value, where=prices > 0)
    chosen = rows[np.lexsort((-table.throughput[rows], -value[rows]))][:top]
    return [
        _ranked(
            library.template(model, phase, int(row)),
            float(prices[row]),
            str(domains[at[row]]) if at[row] >= 0 else None,
        )
        for row in chosen
    ]


def _ranked(template: Template, price: float, where: str | None) -> Ranked:
    return Ranked(
        template=template,
        price_usd_h=None if np.isnan(price) else price,
        per_usd=template.throughput / price if price > 0 else None,
        where=where,
    )
