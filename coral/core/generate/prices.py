"""What the nodes of a template cost: its share of the cheapest machines of one domain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coral.hookspecs.planner import TemplateTable
from coral.types.hardware import Domain, NodeType, Offer
from coral.types.program import Floats, Ints


def node_price(kind: NodeType, offers: Sequence[Offer]) -> float:
    """USD/h of the share of the cheapest machine on offer that holds such a node; NaN where none does."""
    prices = [
        offer.price_usd_h * kind.count / offer.machine_type.gpus
        for offer in offers
        if offer.machine_type.gpu == kind.gpu and offer.machine_type.gpus >= kind.count
    ]
    return min(prices, default=float("nan"))


def domains_of(offers: Sequence[Offer]) -> tuple[Domain, ...]:
    return tuple(dict.fromkeys(offer.domain for offer in offers))


def template_prices(table: TemplateTable, offers: Sequence[Offer]) -> tuple[Floats, Ints]:
    """USD/h of every row in the domain where it is cheapest, and which of `domains_of(offers)` that is.

    A template is of one domain: NaN (and -1) where no domain offers all of its node types.
    """
    domains = domains_of(offers)
    best = np.full(len(table.throughput), np.nan)
    where = np.full(len(best), -1, np.int64)
    for d, domain in enumerate(domains):
        there = [offer for offer in offers if offer.domain == domain]
        each = np.array([node_price(kind, there) for kind in table.node_types])
        total: Floats = np.where(table.usage > 0, table.usage * each, 0.0).sum(axis=1)
        cheaper: NDArray[np.bool_] = ~np.isnan(total) & ~(total >= best)
        best[cheaper], where[cheaper] = total[cheaper], d
    return best, where
