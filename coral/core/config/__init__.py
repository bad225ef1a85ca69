"""The config: file + environment + `--set` → one validated `Config`."""

from coral.core.config.load import load_config, parse_config
from coral.core.config.schema import Config, ModelSection
from coral.core.config.use import Use

__all__ = ["Config", "ModelSection", "Use", "load_config", "parse_config"]
