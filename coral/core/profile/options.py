"""Options of the built-in profilers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coral.hookspecs.options import Bytes, Duration, LocalPath, Options


class AnalyticOptions(Options):
    """Shares of peak figures, and fixed costs, of GPUs that are not measured. What is not given is what was
    calibrated for the class of GPU (Hopper, Ada, ...)."""

    compute_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of peak FLOP/s that is reached by matrix products, of 16 bits and of fewer."""
    bandwidth_efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of memory bandwidth that is reached."""
    launch: Annotated[Duration, Field(ge=0)] | None = None
    """Time per layer, whatever the batch."""
    overhead: Annotated[Duration, Field(ge=0)] | None = None
    """Time per step, whatever it holds."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.90
    """Share of a GPU's memory that may be used."""
    workspace: Annotated[Bytes, Field(ge=0)] = 1 << 30
    """Runtime and workspace of the engine on a GPU."""
    error: Annotated[float, Field(ge=0)] | None = None
    """Relative error that is stated for what is not measured; of the GPU's class where not given."""


class EngineProfilerOptions(Options):
    """How timed steps become a step cost."""

    form: Literal["knee", "affine"] = "knee"
    """`knee`: few tokens wait for the weights, many for the arithmetic; `affine`: the two add up."""
    files: tuple[LocalPath, ...] = ()
    """Measuring runs of other machines, written by `coral profile run --out`; asked before measuring here."""
