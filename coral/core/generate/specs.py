"""Models as the planner sees them, out of the config."""

from __future__ import annotations

from pathlib import Path

from coral.core.config import Config
from coral.core.config.schema import ModelSection
from coral.core.profile.shape import read_shape, with_dtype
from coral.core.profile.source import resolve
from coral.types.model import ModelShape, ModelSpec


def model_specs(config: Config) -> tuple[ModelSpec, ...]:
    """One spec per model. The shape is the config's own where it gives one, else the source's `config.json`.

    Raises SourceError where the source cannot be had or its architecture is not known.
    """
    return tuple(_spec(config, model) for model in config.models)


def _spec(config: Config, model: ModelSection) -> ModelSpec:
    return ModelSpec(
        name=model.name,
        shape=_shape(config, model),
        slo=model.slo.spec(),
        demand=model.demand.spec(model.slo.percentile),
        phases=config.phases_of(model),
        engine=config.engine_of(model).use,
        priority=model.priority,
        initialization_s=model.initialization,
        floor=model.floor,
        max_cost_usd_h=model.max_cost,
        max_gpus=model.max_gpus,
        survive_zone=model.survive_zone,
        survive_machine=model.survive_machine,
    )


def _shape(config: Config, model: ModelSection) -> ModelShape:
    if model.shape is not None:
        return with_dtype(model.shape, model.dtype)
    folder = resolve(model.source, Path(config.state.folder).expanduser(), weights=False)
    return with_dtype(read_shape(folder), model.dtype)
