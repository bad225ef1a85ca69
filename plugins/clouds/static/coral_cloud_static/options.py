"""Options of the static cloud."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from coral.hookspecs.options import Bytes, Duration, LocalPath, Options, Rate


class OfferRow(Options):
    """A machine type in a region: a row of `offers`, or a line of the file."""

    type: Annotated[str, Field(min_length=1)]
    """Machine type."""
    gpu: Annotated[str, Field(min_length=1)]
    """GPU model."""
    gpus: Annotated[int, Field(ge=1, le=64)]
    """GPUs of one machine."""
    region: Annotated[str, Field(min_length=1)]
    zone: str = ""
    price: Annotated[float, Field(ge=0)]
    """USD per hour and machine."""
    obtainable: Annotated[int, Field(ge=0)] = 0
    """How many can be had."""
    market: Literal["on_demand", "spot"] = "on_demand"
    preemption_per_h: Annotated[float, Field(ge=0)] = 0.0
    """Preemptions to be expected of one spot machine in an hour."""
    host_memory: Bytes = 0
    """Of one machine; unknown where 0."""
    nic: Rate = 0.0
    """Sustained, of one machine; unknown where 0."""
    nic_latency: Duration = 0.0
    """One way to another machine; unknown where 0."""

    @model_validator(mode="after")
    def _only_spot_is_preempted(self) -> OfferRow:
        if self.preemption_per_h and self.market != "spot":
            raise ValueError("preemption_per_h is of spot offers only (`market: spot`)")
        return self


class GpuRow(Options):
    """A GPU that the catalogue does not have."""

    name: Annotated[str, Field(min_length=1)]
    memory: Annotated[Bytes, Field(gt=0)]
    memory_bandwidth: Annotated[Rate, Field(gt=0)]
    flops: dict[str, Annotated[float, Field(gt=0)]]
    """Peak dense FLOP/s by dtype, for example {bfloat16: 3.62e14}."""
    link_bandwidth: Rate = 0.0
    """Between GPUs of a machine, as an all-reduce sees it."""
    link_latency: Duration = 0.0


class StaticOptions(Options):
    """What is on offer."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "static"
    """The cloud's name in domains."""
    offers: tuple[OfferRow, ...] = ()
    """Offers in place."""
    file: LocalPath | None = None
    """A CSV file with more, relative to the config; its header line names the columns as `offers` does."""
    gpus: tuple[GpuRow, ...] = ()
    """GPUs that the catalogue does not have."""

    @model_validator(mode="after")
    def _something(self) -> StaticOptions:
        if not self.offers and self.file is None:
            raise ValueError("give offers, or a file that has them")
        return self
