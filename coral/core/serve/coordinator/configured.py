"""What the config says of clouds and models, as the coordinator's parts need it."""

from __future__ import annotations

import hashlib
import math

import msgspec

from coral.core.config import Config, ModelSection
from coral.core.serve.coordinator.preparation import Prepared
from coral.core.serve.coordinator.specs import ServingModel
from coral.types.model import ModelSpec


def cloud_names(config: Config) -> list[str]:
    """One for each of the config's clouds, in order: the plugin's name, numbered from the second on."""
    names: list[str] = []
    for use in config.clouds:
        before = sum(name.partition("#")[0] == use.use for name in names)
        names.append(f"{use.use}#{before + 1}" if before else use.use)
    return names


def fingerprints(config: Config) -> dict[str, str]:
    """By model: changes with all that a running instance of it cannot change any more. Demand and SLO are
    not of it, nor is what only counts for what is rented."""
    return {model.name: _fingerprint(config, model) for model in config.models}


def _fingerprint(config: Config, model: ModelSection) -> str:
    use = config.engine_of(model)
    parts = (
        str(model.source),
        model.dtype,
        model.max_model_len,
        model.shape,
        use.use,
        use.options.model_dump(mode="json"),
        use.args,
        str(use.python or ""),
        [str(path) for path in config.plugins.paths],
        (config.serve.channel, config.serve.trusted_network),
    )
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def serving_models(config: Config, ready: Prepared) -> dict[str, ServingModel]:
    """By name."""
    sections = {model.name: model for model in config.models}
    return {
        spec.name: _serving_model(config, spec, sections[spec.name], ready.sources[spec.name])
        for spec in ready.models
    }


def _serving_model(config: Config, spec: ModelSpec, section: ModelSection, source: str) -> ServingModel:
    use = config.engine_of(section)
    most = spec.shape.max_positions
    return ServingModel(
        name=spec.name,
        source=source,
        layers=spec.shape.layers,
        max_model_len=min(section.max_model_len or most, most),
        expected_output_tokens=math.ceil(spec.demand.output_tokens),
        dtype=section.dtype,
        engine=use.use,
        engine_options=use.options.model_dump(mode="json"),
        engine_args=use.args,
        python=str(use.python) if use.python else None,
        kv_lease_s=config.serve.kv_lease,
    )
