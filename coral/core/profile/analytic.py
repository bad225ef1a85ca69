"""The `analytic` profiler: data-sheet rooflines for GPUs, a fit of a short real run for CPU devices."""

from __future__ import annotations

from coral.core.profile.fit import fit
from coral.core.profile.options import AnalyticOptions
from coral.core.profile.roofline import Efficiency, RooflineStepCost, flops_of
from coral.errors import ProfileError
from coral.hookspecs.profiler import Measure, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape


class AnalyticProfiler:
    """`coral.hookspecs.profiler.Profiler`."""

    def __init__(self, efficiency: Efficiency) -> None:
        self.efficiency = efficiency

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
        if flops_of(gpu, model) <= 0 or gpu.memory_bytes_per_s <= 0:
            raise ProfileError(
                f"GPU {gpu.name!r} has no FLOP/s for {model.activation_dtype} or no memory bandwidth",
                mend="give both in the GPU's data, or choose another dtype",
            )
        return RooflineStepCost(
            shape=model, gpu=gpu, engine=engine, engine_version="", efficiency=self.efficiency
        )


def build(options: AnalyticOptions) -> AnalyticProfiler:
    return AnalyticProfiler(
        Efficiency(
            compute=options.compute_efficiency,
            bandwidth=options.bandwidth_efficiency,
            launch_s=options.launch,
            overhead_s=options.overhead,
            memory=options.memory_fraction,
            workspace_bytes=options.workspace,
            error=options.error,
        )
    )
