"""Models whose weights are larger than all that one template may take."""

from __future__ import annotations

from collections.abc import Mapping

from coral.core.generate.node_types import node_types
from coral.core.profile import catalogue
from coral.core.profile.weights import model_bytes
from coral.hookspecs.planner import View
from coral.types.hardware import Domain, Gpu, Offer

GIB = 2.0**30
MOST_NODES = 10
"""What generate.max_nodes may be."""


def oversized(view: View, gpus: Mapping[str, Gpu], max_nodes: int) -> tuple[str, ...]:
    """A line for each model that asks for something and fits into no domain's largest template of `max_nodes`
    nodes, however many machines there were: with the figures, and what would hold it.

    `gpus`: those that only a cloud knows; the catalogue has the others.
    """
    domains: dict[Domain, list[Offer]] = {}
    for offer in view.offers:
        domains.setdefault(offer.domain, []).append(offer)
    largest = 0.0
    of = ""
    for offers in domains.values():
        for kind in node_types(offers, slices=view.options.slices):
            gpu = gpus[kind.gpu] if kind.gpu in gpus else catalogue.gpu(kind.gpu)
            if gpu.memory_bytes * kind.count > largest:
                largest, of = float(gpu.memory_bytes * kind.count), str(kind)
    lines = []
    for spec in view.models:
        weights = model_bytes(spec.shape)
        if spec.demand.requests_per_s > 0 and largest > 0 and weights > max_nodes * largest:
            nodes = -(-weights // int(largest))
            lines.append(
                f"{spec.name} is too large for every template: its weights take {weights / GIB:,.1f} GiB, "
                f"and the {max_nodes} nodes that one may have hold {max_nodes * largest / GIB:,.1f} GiB at "
                f"most ({of}); offer larger machines or choose a smaller dtype"
                + (f", or set generate.max_nodes to {nodes} or more" if nodes <= MOST_NODES else "")
            )
    return tuple(lines)
