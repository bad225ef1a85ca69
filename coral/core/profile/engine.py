"""The `engine` profiler: step costs from timed steps of the real engine on the devices at hand."""

from __future__ import annotations

from coral.core.profile.fit import fit
from coral.core.profile.knee import fit_knee
from coral.core.profile.options import EngineProfilerOptions
from coral.core.profile.records import read_records
from coral.errors import ProfileError
from coral.hookspecs.profiler import Measure, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape

NAME = "engine"


class EngineProfiler:
    """`coral.hookspecs.profiler.Profiler`. Measures once; the result is kept and shared by like devices."""

    def __init__(self, options: EngineProfilerOptions) -> None:
        """Raises ProfileError where a file of the options cannot be read."""
        self.options = options
        self.runs = {run.about: run.measurements for run in read_records(options.files)}

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        """Raises ProfileError where the engine cannot be measured on that device here, or the run fails."""
        measured = self.runs.get((model, dtype, gpu.name, engine))
        if measured is None and measure is not None:
            measured = measure(model, gpu, dtype)
        if measured is None:
            raise ProfileError(
                f"engine {engine!r} cannot be measured on {gpu.name!r} here",
                mend="run `coral profile run --out FILE` where the device is and name the file in "
                "`profiler: {use: engine, files: [FILE]}`, or put a profiler that knows it behind: "
                "`otherwise: analytic`",
            )
        if self.options.form == "affine":
            return fit(measured, gpu.name, NAME)
        return fit_knee(measured, gpu.name, NAME)


def build(options: EngineProfilerOptions) -> EngineProfiler:
    return EngineProfiler(options)
