"""What the engines of a config can do and cost, for each model on each GPU; asked once each."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coral.core.config import Config
from coral.core.config.schema import ModelSection, ProfilerUse
from coral.core.generate.build import Progress
from coral.core.plugins import Registry
from coral.core.profile.fallback import WithFallback
from coral.core.profile.measure import MeasuringRun
from coral.hookspecs.engine import Engine, EngineCapabilities
from coral.hookspecs.profiler import Profiler, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelSpec


def profiler_of(section: ProfilerUse, registry: Registry) -> Profiler:
    """The profiler that a config's section says, with the one behind it."""
    profiler: Profiler = registry.build("profiler", section.use, section.options)
    if section.otherwise is None:
        return profiler
    return WithFallback(
        profiler, registry.build("profiler", section.otherwise.use, section.otherwise.options)
    )


class EnginesOf:
    """Engines and profiler of a config, built once; answers are remembered by (model, GPU)."""

    def __init__(self, config: Config, registry: Registry, progress: Progress | None = None) -> None:
        self._config = config
        self._progress = progress
        self._sections = {section.name: section for section in config.models}
        self._engines = {section.name: self._engine(registry, section) for section in config.models}
        self._profiler = profiler_of(config.profiler, registry)
        self._able: dict[tuple[str, str], EngineCapabilities] = {}
        self._costs: dict[tuple[str, str], StepCost] = {}

    def capabilities(self, model: ModelSpec, gpu: Gpu) -> EngineCapabilities:
        """The engine's own, within the config's `step_tokens` and `step_requests`."""
        key = (model.name, gpu.name)
        if key not in self._able:
            self._able[key] = self._asked(model, gpu)
        return self._able[key]

    def cost(self, model: ModelSpec, gpu: Gpu) -> StepCost:
        """Raises ProfileError where the profiler knows nothing of that combination."""
        key = (model.name, gpu.name)
        if key not in self._costs:
            if self._progress is not None:
                self._progress(0.0, 0.0, f"step cost of {model.name} on {gpu.name}")
            self._costs[key] = self._profiler.step_cost(
                model.shape, gpu, model.engine, dtype=self.dtype(model), measure=self.measuring(model)
            )
        return self._costs[key]

    def measuring(self, model: ModelSpec) -> MeasuringRun:
        """What times real steps of the model's engine, on the devices that are here."""
        use = self._config.engine_of(self._sections[model.name])
        return MeasuringRun(
            self._engines[model.name],
            model.engine,
            Path(self._config.state.folder).expanduser(),
            options=use.options.model_dump(mode="json"),
            python=str(use.python) if use.python else None,
        )

    def dtype(self, model: ModelSpec) -> str:
        return self._sections[model.name].dtype

    def _asked(self, model: ModelSpec, gpu: Gpu) -> EngineCapabilities:
        section = self._sections[model.name]
        use = self._config.engine_of(section)
        able = self._engines[model.name].capabilities(model.shape, gpu)
        refusal = able.refusal
        if refusal is None and able.dtypes and section.dtype not in able.dtypes:
            refusal = f"dtype {section.dtype} is not among {', '.join(able.dtypes)}"
        return msgspec.structs.replace(
            able,
            max_step_tokens=min(able.max_step_tokens, use.step_tokens or able.max_step_tokens),
            max_step_requests=min(able.max_step_requests, use.step_requests or able.max_step_requests),
            refusal=refusal,
        )

    def _engine(self, registry: Registry, section: ModelSection) -> Engine:
        use = self._config.engine_of(section)
        engine: Engine = registry.build("engine", use.use, use.options)
        return engine
