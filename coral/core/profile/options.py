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


class MeasuredModel(Options):
    """Which model a name in a file of measured layers is: told by its size."""

    layers: Annotated[int, Field(gt=0)]
    """Layers of the model."""
    hidden: Annotated[int, Field(gt=0)]
    """Its hidden size."""


class MeasuredOptions(Options):
    """Files of milliseconds per layer (CSV or Parquet: model, gpu, phase, batch_tokens, latency_ms_per_layer,
    and context where it is known), and what they leave open."""

    files: Annotated[tuple[LocalPath, ...], Field(min_length=1)]
    """CSV or Parquet files of measured layers."""
    models: dict[str, MeasuredModel] = Field(default_factory=dict)
    """Layers and hidden size of each model that the files name."""
    gpus: dict[str, str] = Field(default_factory=dict)
    """Names of GPUs in the files, and what the hardware catalogue or a cloud calls them."""
    decode_context: Annotated[float, Field(gt=0)] = 1024.0
    """Tokens of context of the measured decode rows, where the files do not say."""
    prompt_tokens: Annotated[float, Field(gt=0)] = 1024.0
    """Tokens of each measured prompt, where the files do not say; no more than the step's tokens."""
    engine_version: str = ""
    """Version of the engine that was measured; the files' own hash where not given."""
    overhead: Annotated[Duration, Field(ge=0)] | None = None
    """Time per step beside its layers; the analytic one where not given."""
    embedding: Annotated[Duration, Field(ge=0)] | None = None
    """Time of the first stage's embedding per step; the analytic one where not given."""
    logits: Annotated[Duration, Field(ge=0)] | None = None
    """Time of the last stage's output head per step; the analytic one where not given."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.90
    """Share of a GPU's memory that may be used."""
    workspace: Annotated[Bytes, Field(ge=0)] = 1 << 30
    """Runtime and workspace of the engine on a GPU."""
    error: Annotated[float, Field(ge=0)] | None = None
    """Relative error that is stated; the largest distance of a point from its curve, 5 % or more, if not
    given."""
