"""T̂ of stages by their share of the latency SLO, for templates whose stages share it freely."""

from __future__ import annotations

from collections.abc import Sequence

from coral.core.generate.hardware import Hardware
from coral.core.profile.throughput import ThroughputTable, tables_of_targets
from coral.types.model import ModelSpec, Phase, Slo

UNITS = 24
"""K: into how many units the SLO is cut. Of more, little more is gained, at a cost that grows as K²."""


def budget_tables(
    model: ModelSpec, phase: Phase, hardware: Hardware, units: int, aims: Sequence[Slo]
) -> list[ThroughputTable]:
    """`rate[k-1, role, L, type]` for each latency target: T̂ of a stage of a pipeline that is given k of
    `units` units of it, k = 1 … `units` - 1."""
    return tables_of_targets(
        model,
        phase,
        hardware.node_types,
        hardware.gpus,
        hardware.costs,
        hardware.capabilities,
        hardware.hop,
        [units / k for k in range(1, units)],
        aims,
    )
