"""The `engine` profiler: step costs from timed steps of the real engine on the devices at hand."""

from __future__ import annotations

from coral.core.profile.fit import fit
from coral.core.profile.knee import fit_knee
from coral.core.profile.options import EngineProfilerOptions
from coral.errors import ProfileError
from coral.hookspecs.profiler import Measure, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape


class EngineProfiler:
    """`coral.hookspecs.profiler.Profiler`. Measures once; the result is kept and shared by like devices."""

    def __init__(self, options: EngineProfilerOptions) -> None:
        self.options = options

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        """Raises ProfileError where the engine cannot be measured on that device here, or the run fails."""
        measured = measure(model, gpu, dtype) if measure is not None else None
        if measured is None:
            raise ProfileError(
                f"engine {engine!r} cannot be measured on {gpu.name!r} here",
                mend="run where the device is, or name a profiler that knows it: "
                "`profiler: {use: engine, otherwise: analytic}`",
            )
        if self.options.form == "affine":
            return fit(measured, gpu.name)
        return fit_knee(measured, gpu.name)


def build(options: EngineProfilerOptions) -> EngineProfiler:
    return EngineProfiler(options)
