"""The same setups where a node of n GPUs always runs tensor parallelism over all n: what it would cost.

A GPU model gets a name for every node size (`L40S@8`), whose steps take for ever at any other degree; offers
are renamed alike. Nothing else differs, so the cost of the wide assumption can be read off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks import paper
from benchmarks.market import machine_types
from coral.core.generate.build import GenerateOptions, build_library
from coral.core.generate.library import TemplateLibrary
from coral.core.generate.node_types import worst_hop
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType, Offer
from coral.types.model import ModelSpec
from coral.types.step import StepWork

NEVER_S = 1e6


class OnlyAt:
    """A StepCost whose steps take for ever at any degree but one."""

    def __init__(self, cost: StepCost, tp: int, gpu: str) -> None:
        self._cost, self._tp = cost, tp
        self.gpu = gpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cost, name)

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> Any:
        seconds = self._cost.step_s(work, layers, first=first, last=last, tp=tp)
        return seconds if tp == self._tp else np.maximum(seconds, NEVER_S)


def renamed(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    return tuple(
        replace(
            one,
            machine_type=replace(one.machine_type, gpu=f"{one.machine_type.gpu}@{one.machine_type.gpus}"),
        )
        for one in offers
    )


def library(
    setup: paper.Setup, profiler: str, specs: Sequence[ModelSpec], folder: Path | None = None, **limits: Any
) -> TemplateLibrary:
    """As `paper.library`, with one GPU name per node size."""
    costs = paper.step_costs(profiler)
    plain = paper.gpus(setup)
    kinds = tuple(NodeType(f"{kind.gpu}@{kind.count}", kind.count) for kind in paper.node_types(setup))
    gpus = {kind.gpu: replace(plain[kind.gpu.partition("@")[0]], name=kind.gpu) for kind in kinds}

    def cost(model: ModelSpec, gpu: Gpu) -> Any:
        name, _, count = gpu.name.partition("@")
        return OnlyAt(costs(model, plain[name]), int(count), gpu.name)

    options = GenerateOptions(
        max_nodes=limits.get("max_nodes", 6), memory_ratio=limits.get("memory_ratio", 12.0)
    )
    kept = folder or paper.cache_folder() / (
        f"{setup}-{profiler}-{options.max_nodes}-{options.memory_ratio:g}-wide-tp"
    )
    return build_library(
        specs,
        kinds,
        gpus,
        cost,
        paper.capabilities,
        options,
        worst_hop(machine_types(setup)),
        kept,
        store=kept.parent / "store" if folder is None else None,
    )
