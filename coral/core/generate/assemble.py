"""From a validated config to models and their template library: what every command starts with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from coral.core.config import Config
from coral.core.generate.build import GenerateOptions, Progress, build_library
from coral.core.generate.engines import EnginesOf
from coral.core.generate.job import depends_on
from coral.core.generate.library import TemplateLibrary
from coral.core.generate.node_types import check_distinct, node_types, worst_hop
from coral.core.generate.specs import model_specs
from coral.core.plugins import Registry
from coral.core.profile import catalogue
from coral.errors import InfeasibleError
from coral.types.hardware import Gpu, NodeType, Offer
from coral.types.model import ModelSpec


def prepare(
    config: Config,
    registry: Registry,
    offers: Sequence[Offer],
    gpus: Mapping[str, Gpu],
    progress: Progress | None = None,
    models: tuple[ModelSpec, ...] | None = None,
) -> tuple[tuple[ModelSpec, ...], TemplateLibrary]:
    """Resolve the models, profile them on the GPUs of the offers, and build or open the library.

    `models`, where given, are the config's own with something changed, resolved already.
    `gpus` are those that only a cloud knows (its `gpus()`), by name; the catalogue has the others. The
    library lies in `TemplateLibrary.folder`; another process opens it by `open_library(folder)`.
    Raises InfeasibleError where nothing is on offer or no GPU on offer can hold a model; UsageError where
    two offers cannot be told apart; SourceError, ProfileError and EngineError of what it is made from.
    """
    if not offers:
        raise InfeasibleError("no cloud offers a machine", mend="check `clouds` in the config")
    check_distinct(offers)
    models = model_specs(config) if models is None else models
    kinds = node_types(offers, slices=config.plan.slices)
    known = {kind.gpu: gpus[kind.gpu] if kind.gpu in gpus else catalogue.gpu(kind.gpu) for kind in kinds}
    engines = EnginesOf(config, registry, progress)
    for model in models:
        _refused_everywhere(model, known, engines)
    folder = Path(config.state.folder).expanduser() / "libraries"
    generate = config.generate
    options = GenerateOptions(
        max_nodes=generate.max_nodes,
        memory_ratio=generate.memory_ratio,
        max_stages=generate.max_stages,
        stage_budgets=generate.stage_budgets,
    )
    with registry.build("executor", config.executor.use, config.executor.options) as executor:
        library = build_library(
            models,
            kinds,
            known,
            engines.cost,
            engines.capabilities,
            options,
            worst_hop(offers),
            folder / _named(models, kinds, known),
            store=folder / "store",
            progress=progress,
            executor=executor,
        )
    return models, library


def _refused_everywhere(model: ModelSpec, gpus: Mapping[str, Gpu], engines: EnginesOf) -> None:
    refusals = {name: engines.capabilities(model, gpu).refusal for name, gpu in gpus.items()}
    if all(refusals.values()):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise InfeasibleError(
            f"engine {model.engine!r} can serve model {model.name!r} on no GPU on offer ({reasons})",
            mend="choose another engine or dtype for the model, or clouds with other machines",
        )


def _named(models: Sequence[ModelSpec], kinds: Sequence[NodeType], gpus: Mapping[str, Gpu]) -> str:
    """Folder of the manifest: one for each set of models and hardware, so that deployments do not meet."""
    content = msgspec.json.encode(
        [
            [depends_on(model) | {"phases": model.phases} for model in models],
            [str(kind) for kind in kinds],
            sorted(gpus.items()),
        ]
    )
    return hashlib.blake2b(content, digest_size=8).hexdigest()
