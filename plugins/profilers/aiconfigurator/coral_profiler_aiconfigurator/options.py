"""Options of the profiler `aiconfigurator`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coral.hookspecs.options import Bytes, Duration, Options


class AIConfiguratorOptions(Options):
    """Which tables are read, and what a step costs beside its kernels."""

    backend: Literal["vllm", "sglang", "trtllm"] | None = None
    """Framework whose kernels are taken; that of the model's engine where not given, else `vllm`."""
    version: Annotated[str, Field(min_length=1)] = "current"
    """Version of its tables: `current` or `next`, or one of those that the data has for the GPU."""
    float8: Literal["static", "tensor", "block"] | None = None
    """Scales of float8: one per tensor of weights and of activations, known beforehand (`static`) or found in
    each step (`tensor`), or one per block of 128 x 128 (`block`). Where not given, as most published models
    are made: `block` for models with experts, `static` for others."""
    overhead: Annotated[Duration, Field(ge=0)] = 0.3e-3
    """Time per step beside the kernels: scheduling, input preparation, sampling."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.90
    """Share of a GPU's memory that may be used."""
    workspace: Annotated[Bytes, Field(ge=0)] = 1 << 30
    """Runtime and workspace of the engine on a GPU, within that share."""
    error: Annotated[float, Field(ge=0)] | None = None
    """Relative error that is stated for whole steps; as it was measured for the GPU where not given."""
