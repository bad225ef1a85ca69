"""Build a template library: one entry per (model, phase), rebuilt only where its inputs changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from msgspec import Struct

from coral.core.generate.library import TemplateLibrary
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import ModelSpec

Progress = Callable[[float, float, str], None]
"""`progress(done, total, what)`: `done` of `total` node combinations are solved; `what` is being done."""


class Hop(Struct, frozen=True, kw_only=True):
    """What handing rows from one stage to the next costs: the worst inter-machine link."""

    latency_s: float
    bytes_per_s: float


class GenerateOptions(Struct, frozen=True, kw_only=True):
    """N_max, ρ and the most stages of a template (None: as many as nodes)."""

    max_nodes: int = 6
    memory_ratio: float = 12.0
    max_stages: int | None = None


def build_library(
    models: Sequence[ModelSpec],
    node_types: Sequence[NodeType],
    gpus: Mapping[str, Gpu],
    costs: Callable[[ModelSpec, Gpu], StepCost],
    capabilities: Callable[[ModelSpec, Gpu], EngineCapabilities],
    options: GenerateOptions,
    hop: Hop,
    folder: Path,
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> TemplateLibrary:
    """Build what is missing or stale in `folder`, atomically, and open it."""
    raise NotImplementedError
