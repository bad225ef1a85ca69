"""Profilers: what one engine step costs on a GPU."""

from __future__ import annotations

from typing import Protocol

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import Measurements, Provenance, StepParts, StepWork


class StepCost(Protocol):
    """Cost of steps of one (model, GPU, engine). `coral.types.step.AffineStepCost` is one."""

    @property
    def profiler(self) -> str:
        """Name of the profiler that answers, as it stands in a config's `use`."""
        ...

    @property
    def engine(self) -> str: ...

    @property
    def engine_version(self) -> str: ...

    @property
    def provenance(self) -> Provenance: ...

    @property
    def error(self) -> float:
        """Stated relative error of the whole step's time (0.15 is 15 %)."""
        ...

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes per token and layer."""
        ...

    @property
    def fixed_bytes(self) -> int:
        """Bytes that the engine takes on a device whatever it holds: runtime and workspace."""
        ...

    @property
    def elementwise(self) -> bool:
        """True where `step_s` and `step_parts` take arrays that broadcast, for the fields of the work and
        for `layers`, as they take numbers: tables are then made in one call, not one per batch."""
        ...

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        """Seconds of one step; non-decreasing in layers and in every field of work.

        Raises UnknownDegree where nothing is known of that tensor parallel degree.
        """
        ...

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        """The same step by its parts, which sum to `step_s`; none is negative."""
        ...

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        """Bytes of weights of a stage; `first` holds the embedding, `last` the output head, and `tied`
        means that one that is both holds them once."""
        ...


class Measure(Protocol):
    """Runs the engine's measuring process, or returns an earlier run's result from the cache."""

    def __call__(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Measurements | None:
        """None where the engine cannot be measured on this machine. Raises BrokenRun on a failed run."""
        ...


class Profiler(Protocol):
    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        """Raises ProfileError where nothing is known of that combination, naming what is."""
        ...


class ProfilerHooks:
    @hookspec
    def coral_profilers(self) -> list[Component]:  # type: ignore[empty-body]
        """Profilers this plugin offers. `build(options)` returns a `Profiler`."""
