"""Options of the built-in profilers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coral.hookspecs.options import Bytes, Duration, LocalPath, Options


class AnalyticOptions(Options):
    """Shares of peak figures, and fixed costs, of GPUs that are not measured."""

    compute_efficiency: Annotated[float, Field(gt=0, le=1)] = 0.55
    """Share of peak FLOP/s that is reached."""
    bandwidth_efficiency: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Share of memory bandwidth that is reached."""
    launch: Annotated[Duration, Field(ge=0)] = 25e-6
    """Time per layer, whatever the batch."""
    overhead: Annotated[Duration, Field(ge=0)] = 1e-3
    """Time per step, whatever it holds."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.90
    """Share of a GPU's memory that may be used."""
    workspace: Annotated[Bytes, Field(ge=0)] = 1 << 30
    """Runtime and workspace of the engine on a GPU."""
    error: Annotated[float, Field(ge=0)] = 0.35
    """Relative error that is stated for what is not measured."""


class EngineProfilerOptions(Options):
    """How timed steps become a step cost."""

    form: Literal["knee", "affine"] = "knee"
    """`knee`: few tokens wait for the weights, many for the arithmetic; `affine`: the two add up."""
    files: tuple[LocalPath, ...] = ()
    """Measuring runs of other machines, written by `coral profile run --out`; asked before measuring here."""
