"""The config: file + environment + `--set` → one validated `Config`."""

from coral.core.config.load import LoadedConfig, load_config, open_config, parse_config
from coral.core.config.schema import Config, EngineUse, ModelSection
from coral.core.config.use import Use

__all__ = [
    "Config",
    "EngineUse",
    "LoadedConfig",
    "ModelSection",
    "Use",
    "load_config",
    "open_config",
    "parse_config",
]
