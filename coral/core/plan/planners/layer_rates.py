"""T̂ by layers held, for planners that place layers themselves."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.hookspecs.planner import Library
from coral.types.model import ModelSpec, Phase


@runtime_checkable
class RatedLibrary(Protocol):
    """A library that also gives the tables its templates were made of."""

    def rates(self, model: str, phase: Phase) -> ThroughputTable: ...


def layer_rates(library: Library, model: ModelSpec, phase: Phase) -> ThroughputTable:
    """The library's tables; where it has none, what its templates of one node say: all layers or nothing."""
    if isinstance(library, RatedLibrary):
        return library.rates(model.name, phase)
    table = library.table(model.name, phase)
    layers, kinds = model.shape.layers, table.node_types
    rate = np.zeros((1, len(ROLES), layers, len(kinds)))
    tp = np.ones(rate.shape, dtype=np.int8)
    for row in np.flatnonzero(table.usage.sum(axis=1) == 1):
        at = int(np.argmax(table.usage[row]))
        if table.throughput[row] > rate[0, ROLES.index("only"), 0, at]:
            node = library.template(model.name, phase, int(row)).placement.stages[0].nodes[0]
            rate[0, ROLES.index("only"), :, at] = table.throughput[row]
            tp[0, ROLES.index("only"), :, at] = node.tp
    return ThroughputTable(node_types=kinds, rate=rate, tp=tp)


def in_flight(library: Library, model: str, phase: Phase) -> float:
    """Requests in flight per unit of throughput of nodes that take all of the SLO."""
    if isinstance(library, RatedLibrary):
        return library.rates(model, phase).in_flight
    usable = np.flatnonzero(library.table(model, phase).throughput > 0)
    if not usable.size:
        return 0.0
    one = library.template(model, phase, int(usable[0]))
    return one.max_concurrency / one.throughput
