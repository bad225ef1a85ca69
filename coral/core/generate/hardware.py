"""What templates are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from coral.core.profile.device import Hop
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import ModelSpec

Costs = Callable[[ModelSpec, Gpu], StepCost]
Capabilities = Callable[[ModelSpec, Gpu], EngineCapabilities]


class Hardware(Struct, frozen=True, kw_only=True, eq=False):
    """Node types, and what is known of their GPUs for each model."""

    node_types: tuple[NodeType, ...]
    gpus: Mapping[str, Gpu]
    costs: Costs
    capabilities: Capabilities
    hop: Hop
