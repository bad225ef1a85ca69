"""What most commands start with: the shared options, the config, the plugins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coral.core.config import LoadedConfig

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The config file, YAML or TOML.", show_default=True)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a key, for example models.0.slo.prefill=2s; repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_CONFIG = Path("coral.yaml")


def open_session(config: Path = DEFAULT_CONFIG, sets: Sequence[str] | None = None) -> LoadedConfig:
    """The validated config with its plugins (`.config`, `.registry`). Raises ConfigError."""
    from coral.core.config import open_config

    return open_config(config, sets or ())
