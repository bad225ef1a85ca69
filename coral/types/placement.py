"""Stages, placements, serving templates."""

from __future__ import annotations

from msgspec import Struct

from coral.types.hardware import NodeType
from coral.types.model import Phase, Slo


class StageNode(Struct, frozen=True, kw_only=True):
    """One member of a stage. `throughput` is its weight (tokens/s; requests/s when mixed).

    A node of k GPUs runs as k / `tp` data-parallel workers of tensor parallel degree `tp`.
    """

    node_type: NodeType
    throughput: float
    tp: int = 1


class Stage(Struct, frozen=True, kw_only=True):
    """Layers `[first_layer, end_layer)`, held alike by every node of the stage."""

    first_layer: int
    end_layer: int
    nodes: tuple[StageNode, ...]

    @property
    def layers(self) -> int:
        return self.end_layer - self.first_layer

    @property
    def throughput(self) -> float:
        return sum(node.throughput for node in self.nodes)


class Placement(Struct, frozen=True, kw_only=True):
    """Stages that cover all layers exactly once, in order."""

    stages: tuple[Stage, ...]

    @property
    def throughput(self) -> float:
        return min(stage.throughput for stage in self.stages)

    @property
    def nodes(self) -> dict[NodeType, int]:
        counts: dict[NodeType, int] = {}
        for stage in self.stages:
            for node in stage.nodes:
                counts[node.node_type] = counts.get(node.node_type, 0) + 1
        return counts

    def picture(self) -> str:
        """For a person: `[0,9) tiny x1 | [9,30) 2× big x1`."""
        parts = []
        for stage in self.stages:
            kinds: dict[str, int] = {}
            for node in stage.nodes:
                kinds[str(node.node_type)] = kinds.get(str(node.node_type), 0) + 1
            nodes = " + ".join(f"{n}× {kind}" if n > 1 else kind for kind, n in kinds.items())
            parts.append(f"[{stage.first_layer},{stage.end_layer}) {nodes}")
        return " | ".join(parts)


class Template(Struct, frozen=True, kw_only=True):
    """(model, phase, SLO, multiset of node types, optimal placement, throughput)."""

    id: str
    model: str
    phase: Phase
    slo: Slo
    placement: Placement
    throughput: float
    """tokens/s: prompt tokens for prefill, output tokens for decode; requests/s for mixed."""
    max_concurrency: float = 0.0
    """Requests in flight that the throughput assumes (Little's law)."""

    @property
    def nodes(self) -> dict[NodeType, int]:
        return self.placement.nodes
