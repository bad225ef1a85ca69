"""Read, override, load the plugins, validate: all faults at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coral.core.config.checks import faults_across
from coral.core.config.document import Document, paths_in, read_document
from coral.core.config.faults import Keys, dotted, faults_of
from coral.core.config.overrides import BadOverride, apply_override, parse_overrides
from coral.core.config.schema import Config
from coral.core.config.use import REGISTRY
from coral.core.plugins import Registry, load_plugins
from coral.errors import ConfigError, Fault


@dataclass(frozen=True)
class LoadedConfig:
    """A config, the plugins it was validated with, and where each given key comes from
    (`coral.yaml:12`, `--set`, or the name of an environment variable; absent: a default)."""

    config: Config
    registry: Registry
    origins: Mapping[Keys, str] = field(default_factory=dict)


def load_config(path: Path | str, sets: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> Config:
    """The validated config of a file, `--set` texts and environment laid over it.

    Raises ConfigError with all its faults.
    """
    return open_config(path, sets, env).config


def open_config(
    path: Path | str,
    sets: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
    registry: Registry | None = None,
) -> LoadedConfig:
    """As `load_config`, with the registry (loaded here unless given) and the origins of the keys."""
    document = read_document(Path(path))
    tree, origins, faults = _overridden(document, sets, env)
    if registry is None:
        registry = load_plugins(_plugin_paths(tree, document.folder))
    listed = [((), fault) for fault in (*document.faults, *faults)]
    config = _validated(tree, registry, document.folder, document.source, listed, origins)
    return LoadedConfig(config, registry, origins)


def parse_config(
    tree: Any, *, registry: Registry | None = None, folder: Path | str = ".", source: str | None = None
) -> Config:
    """Validate a config given as plain data; relative paths count from `folder`."""
    folder = Path(folder)
    if registry is None:
        registry = load_plugins(_plugin_paths(tree, folder))
    return _validated(tree, registry, folder, source, [], {})


def plugin_paths(path: Path) -> list[Path]:
    """The one-file plugins that a config file names, without validating the rest of it."""
    document = read_document(path)
    return _plugin_paths(document.tree, document.folder)


def _overridden(
    document: Document, sets: Sequence[str], env: Mapping[str, str]
) -> tuple[Any, dict[Keys, str], list[Fault]]:
    name = Path(document.source).name
    origins = {keys: f"{name}:{line}" if line else name for keys, line in document.lines.items()}
    overrides, faults = parse_overrides(sets, env)
    tree = document.tree
    for override in overrides:
        try:
            tree, where = apply_override(tree, override)
        except BadOverride as error:
            faults.append(Fault(f"{override.origin} {'.'.join(override.keys)}", str(error)))
            continue
        origins = {keys: origin for keys, origin in origins.items() if keys[: len(where)] != where}
        origins |= dict.fromkeys(paths_in(override.value, where), override.origin)
    return tree, origins, faults


def _plugin_paths(tree: Any, folder: Path) -> list[Path]:
    section = tree.get("plugins") if isinstance(tree, dict) else None
    paths = section.get("paths") if isinstance(section, dict) else None
    if not isinstance(paths, list | tuple):
        return []
    return [
        Path(os.path.normpath((folder / Path(p).expanduser()).absolute()))
        for p in paths
        if isinstance(p, str)
    ]


def _validated(
    tree: Any,
    registry: Registry,
    folder: Path,
    source: str | None,
    listed: Sequence[tuple[Keys, Fault]],
    origins: Mapping[Keys, str],
) -> Config:
    found = [*listed, *_broken_files(tree, registry, folder), *faults_across(tree)]
    if not isinstance(tree, dict):
        empty = "is empty" if tree is None else f"is a {type(tree).__name__}, not a mapping"
        raise ConfigError([*(fault for _, fault in found), Fault("", empty, "see docs/config.md")], source)
    config: Config | None = None
    try:
        config = Config.model_validate(
            _with_common_engine(tree), context={REGISTRY: registry, "folder": folder}
        )
    except ValidationError as error:
        found += faults_of(error)
    if found or config is None:
        raise ConfigError([_placed(keys, fault, origins) for keys, fault in found], source)
    return config


def _broken_files(tree: Any, registry: Registry, folder: Path) -> list[tuple[Keys, Fault]]:
    """A one-file plugin that the config names and that cannot be used is a fault of the config."""
    errors = {record.origin: record.error for record in registry.records if record.error}
    found: list[tuple[Keys, Fault]] = []
    for i, path in enumerate(_plugin_paths(tree, folder)):
        if str(path) in errors:
            keys: Keys = ("plugins", "paths", i)
            found.append((keys, Fault(dotted(keys), f"plugin {path}: {errors[str(path)]}")))
    return found


def _with_common_engine(tree: dict[str, Any]) -> dict[str, Any]:
    """A model's engine section without `use` is laid over the common one, its `args` over the common args."""
    common, models = tree.get("engine"), tree.get("models")
    if isinstance(common, str):
        common = {"use": common}
    if not isinstance(common, dict) or not isinstance(models, list):
        return tree
    return {**tree, "models": [_merged(model, common) for model in models]}


def _merged(model: Any, common: dict[str, Any]) -> Any:
    own = model.get("engine") if isinstance(model, dict) else None
    if not isinstance(own, dict) or "use" in own:
        return model
    engine = {**common, **own}
    if isinstance(own.get("args"), dict) and isinstance(common.get("args"), dict):
        engine["args"] = {**common["args"], **own["args"]}
    return {**model, "engine": engine}


def _placed(keys: Keys, fault: Fault, origins: Mapping[Keys, str]) -> Fault:
    """The fault with the line, variable or option its key comes from, where that is known."""
    origin = next((origins[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in origins), None)
    return Fault(fault.path, f"{fault.message} [{origin}]" if origin else fault.message, fault.mend)
