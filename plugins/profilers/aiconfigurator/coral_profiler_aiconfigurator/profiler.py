"""The profiler: finds the tables of a GPU, and refuses what no kernel was measured for."""

from __future__ import annotations

from coral.errors import ProfileError
from coral.hookspecs.profiler import Measure
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral_profiler_aiconfigurator.cost import KernelStepCost
from coral_profiler_aiconfigurator.kernels import kernels
from coral_profiler_aiconfigurator.options import AIConfiguratorOptions
from coral_profiler_aiconfigurator.systems import formats, system_of

BACKENDS = ("vllm", "sglang", "trtllm")


def build(options: AIConfiguratorOptions) -> AIConfiguratorProfiler:
    return AIConfiguratorProfiler(options)


class AIConfiguratorProfiler:
    """A `coral.hookspecs.profiler.Profiler`; what it was asked once it remembers."""

    def __init__(self, options: AIConfiguratorOptions) -> None:
        self._options = options
        self._costs: dict[tuple[ModelShape, str, int, str], KernelStepCost] = {}

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> KernelStepCost:
        """Raises ProfileError for GPUs, formats, heads or experts that no kernel was measured for."""
        key = (model, gpu.name, gpu.memory_bytes, engine)
        if key not in self._costs:
            self._costs[key] = self._found(model, gpu, engine)
        return self._costs[key]

    def _found(self, model: ModelShape, gpu: Gpu, engine: str) -> KernelStepCost:
        backend = self._options.backend or (engine if engine in BACKENDS else "vllm")
        system = system_of(gpu)
        usual = "block" if model.moe else "static"
        named = formats(model, system, self._options.float8 or usual)
        opened = kernels(system, backend, self._options.version)
        cost = KernelStepCost(model, gpu, engine, opened, backend, named, self._options)
        try:
            cost.tables(1)
        except ProfileError as error:
            raise ProfileError(
                f"{model.architecture} on {gpu.name}: {error.message}", mend=error.mend
            ) from error
        return cost
