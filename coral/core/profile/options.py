"""Options of the built-in profilers."""

from __future__ import annotations

from pydantic import Field

from coral.hookspecs.options import Bytes, Duration, Options


class AnalyticOptions(Options):
    """`profiler: {use: analytic}`. Shares of peak figures, and fixed costs, of GPUs that are not measured."""

    compute_efficiency: float = Field(0.55, gt=0, le=1, description="share of peak FLOP/s that is reached")
    bandwidth_efficiency: float = Field(0.75, gt=0, le=1, description="share of memory bandwidth reached")
    launch: Duration = Field(25e-6, ge=0, description="time per layer whatever the batch")
    overhead: Duration = Field(1e-3, ge=0, description="time per step whatever it holds")
    memory_fraction: float = Field(0.90, gt=0, le=1, description="share of a GPU's memory that may be used")
    workspace: Bytes = Field(1 << 30, ge=0, description="runtime and workspace on a GPU")
    error: float = Field(0.35, ge=0, description="relative error stated for what is not measured")
