"""Reading fields of a Hugging Face `config.json`, whichever of their names they go by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coral.errors import SourceError


def positive(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """A positive integer; `default`, where there is one, for a key that is missing, null or 0.

    Raises SourceError naming the field and what was found.
    """
    value = config.get(key)
    if not value and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SourceError(f"{where}: {key} must be a positive integer, found {value!r}")
    return value


def named(config: Mapping[str, Any], names: Sequence[str], where: str, default: int | None = None) -> int:
    """`positive` of the first of `names` that the config has; the first name is told where it has none."""
    key = next((name for name in names if config.get(name)), names[0])
    return positive(config, key, where, default)
