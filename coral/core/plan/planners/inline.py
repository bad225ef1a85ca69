"""A library of just the templates a planner has made itself: planned, checked and costed like any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coral.hookspecs.planner import TemplateTable
from coral.types.hardware import NodeType
from coral.types.model import Phase
from coral.types.placement import Template


class InlineLibrary:
    """A `coral.hookspecs.planner.Library`. `templates` by (model, phase); others have an empty table."""

    def __init__(self, templates: Mapping[tuple[str, Phase], Sequence[Template]]) -> None:
        self._templates = {key: tuple(some) for key, some in templates.items()}

    def table(self, model: str, phase: Phase) -> TemplateTable:
        templates = self._templates.get((model, phase), ())
        kinds: tuple[NodeType, ...] = tuple(sorted({kind for one in templates for kind in one.nodes}))
        usage = np.array([[one.nodes.get(kind, 0) for kind in kinds] for one in templates], dtype=np.int16)
        return TemplateTable(
            node_types=kinds,
            usage=usage.reshape(len(templates), len(kinds)),
            throughput=np.array([one.throughput for one in templates], dtype=np.float64),
            irreducible=np.ones(len(templates), dtype=np.bool_),
        )

    def template(self, model: str, phase: Phase, row: int) -> Template:
        return self._templates[model, phase][row]
