"""The effective config, flat: every key with its value and where the value comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coral.core.config.faults import Keys, dotted
from coral.core.config.load import LoadedConfig

DEFAULT = "default"
MASK = "•••"
_SECRET = re.compile(
    r"(^|[_.-])(token|secret|password|passwd|credentials?|api[_-]?keys?|access[_-]?key)$", re.IGNORECASE
)


@dataclass(frozen=True)
class Value:
    path: str
    text: str
    origin: str


def effective(loaded: LoadedConfig) -> list[Value]:
    """All keys in the order of the schema. Free-form arguments that are named like secrets are masked."""
    tree = masked(loaded.config.model_dump(mode="json"))
    found: list[Value] = []
    for keys, value in _leaves(tree, ()):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found.append(Value(dotted(keys), text, _origin(keys, loaded)))
    return found


def masked(tree: Any) -> Any:
    """A copy in which literals under keys named like secrets are hidden; references stay."""
    if isinstance(tree, dict):
        return {key: _hidden(key, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [masked(item) for item in tree]
    return tree


def _hidden(key: str, value: Any) -> Any:
    if _SECRET.search(str(key)) and isinstance(value, str | int | float) and not isinstance(value, bool):
        return MASK
    return masked(value)


def _leaves(tree: Any, path: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, list) and tree and any(isinstance(item, dict) for item in tree):
        for i, value in enumerate(tree):
            yield from _leaves(value, (*path, i))
    else:
        yield path, tree


def _origin(keys: Keys, loaded: LoadedConfig) -> str:
    """Where the key is given; `router: name` gives `router.use`. Else it is a default."""
    if keys in loaded.origins:
        return loaded.origins[keys]
    short = keys[-1] == "use" and not any(
        len(k) > len(keys) - 1 for k in loaded.origins if k[: len(keys) - 1] == keys[:-1]
    )
    return loaded.origins.get(keys[:-1], DEFAULT) if short else DEFAULT
