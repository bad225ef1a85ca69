"""A template library without one of its templates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from coral.hookspecs.planner import Library, TemplateTable, View
from coral.types.hardware import NodeType
from coral.types.model import Phase
from coral.types.placement import Template
from coral.types.program import Ints


class Forbidding:
    """`coral.hookspecs.planner.Library` in which (model, phase) has no template of just these nodes.

    Templates that need all of these nodes and more may have been called reducible because of it, and are
    irreducible here: dropping them would be a loss.
    """

    def __init__(self, library: Library, model: str, phase: Phase, nodes: Mapping[NodeType, int]) -> None:
        self._library = library
        self._key = (model, phase)
        table = library.table(model, phase)
        wanted = np.array([nodes.get(kind, 0) for kind in table.node_types], dtype=table.usage.dtype)
        known = set(nodes) <= set(table.node_types)
        same = (table.usage == wanted).all(axis=1) if known else np.zeros(len(table.throughput), np.bool_)
        above = (table.usage >= wanted).all(axis=1)
        self._rows: Ints = np.flatnonzero(~same)
        self._table = TemplateTable(
            node_types=table.node_types,
            usage=table.usage[self._rows],
            throughput=table.throughput[self._rows],
            irreducible=(table.irreducible | above)[self._rows],
        )

    def table(self, model: str, phase: Phase) -> TemplateTable:
        return self._table if (model, phase) == self._key else self._library.table(model, phase)

    def template(self, model: str, phase: Phase, row: int) -> Template:
        at = int(self._rows[row]) if (model, phase) == self._key else row
        return self._library.template(model, phase, at)


def without(
    view: View, library: Library, model: str, phase: Phase, nodes: Mapping[NodeType, int]
) -> tuple[View, Library]:
    """As if there had never been that template: nothing of it runs either; its machines stay held."""
    running = tuple(
        one
        for one in view.running
        if (one.template.model, one.template.phase) != (model, phase) or one.template.nodes != dict(nodes)
    )
    return replace(view, running=running), Forbidding(library, model, phase, nodes)
