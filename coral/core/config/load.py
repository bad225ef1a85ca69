"""Read, override, validate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from coral.core.config.faults import faults_of
from coral.core.config.schema import Config
from coral.core.plugins import Registry, load_plugins
from coral.errors import ConfigError


def load_config(path: Path | str, sets: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> Config:
    """The validated config of a file. Raises ConfigError with all its faults."""
    path = Path(path)
    return parse_config(yaml.safe_load(path.read_text(encoding="utf-8")), folder=path.parent)


def parse_config(
    tree: Any, *, registry: Registry | None = None, folder: Path | str = ".", source: str | None = None
) -> Config:
    """Validate a config given as plain data; relative paths count from `folder`."""
    context = {"registry": registry or load_plugins(), "folder": Path(folder)}
    try:
        return Config.model_validate(tree, context=context)
    except ValidationError as error:
        raise ConfigError(faults_of(error), source) from None
