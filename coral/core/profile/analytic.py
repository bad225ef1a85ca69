"""The `analytic` profiler: calibrated data-sheet rooflines for GPUs, a fit of a short run for CPU devices."""

from __future__ import annotations

from typing import Any

import msgspec

from coral.core.profile import catalogue
from coral.core.profile.calibration import CLASSES, Efficiency
from coral.core.profile.fit import fit
from coral.core.profile.options import AnalyticOptions
from coral.core.profile.precision import precision
from coral.core.profile.roofline import RooflineStepCost
from coral.errors import ProfileError
from coral.hookspecs.profiler import Measure, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape

CALIBRATED_FOR = "analytic"
"""Stands where a measured cost has its engine's version: the figures are no engine's own."""


class AnalyticProfiler:
    """`coral.hookspecs.profiler.Profiler`."""

    def __init__(self, options: AnalyticOptions) -> None:
        self._options = options

    def efficiency(self, gpu: str) -> Efficiency:
        """What was calibrated for the GPU's class, with the options' own figures in place of it."""
        own = self._options
        given: dict[str, Any] = {
            "compute": own.compute_efficiency,
            "compute_low": own.compute_efficiency,
            "bandwidth": own.bandwidth_efficiency,
            "launch_s": own.launch,
            "overhead_s": own.overhead,
            "memory": own.memory_fraction,
            "workspace_bytes": own.workspace,
            "error": own.error,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(CLASSES[catalogue.gpu_class(gpu)], **given)

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        """A CPU device is measured; a GPU is taken from its data sheet.

        Raises ProfileError where a CPU device cannot be measured, or a GPU's figures are missing.
        """
        if gpu.kind == "cpu":
            measured = measure(model, gpu, dtype) if measure is not None else None
            if measured is None:
                raise ProfileError(
                    f"engine {engine!r} cannot be measured on device {gpu.name!r} here, "
                    "and there is no data sheet of a CPU",
                    mend="use an engine that can be measured (torch), or a profiler that knows the device",
                )
            return fit(measured, gpu.name)
        if precision(gpu, model).flops <= 0 or gpu.memory_bytes_per_s <= 0:
            raise ProfileError(
                f"GPU {gpu.name!r} has no FLOP/s for {model.activation_dtype} or no memory bandwidth",
                mend="give both in the GPU's data, or choose another dtype",
            )
        return RooflineStepCost(
            shape=model,
            gpu=gpu,
            engine=engine,
            engine_version=CALIBRATED_FOR,
            efficiency=self.efficiency(gpu.name),
        )


def build(options: AnalyticOptions) -> AnalyticProfiler:
    return AnalyticProfiler(options)
