"""Overrides of single keys: `--set models.0.slo.prefill=2s` and `CORAL__MODELS__0__SLO__PREFILL=2s`.

A path names keys and list items, by dots; items also in brackets (`models[0].name`); a key with dots,
spaces or brackets stands in quotes (`engine.args."rope.scale"=2`). An index one past the end appends.
Values are YAML. In environment variables two underscores part the keys, which are lower-cased.
The environment lies over the file, `--set` over both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coral.core.config.document import parse_yaml
from coral.core.config.faults import Keys, dotted
from coral.errors import ConfigError, Fault

PREFIX = "CORAL__"
USE_SECTIONS = ("solver", "profiler", "engine", "planner", "router", "executor")
_PIECE = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^."'\[\]=]+))|\[(\d+)\]""")


@dataclass(frozen=True)
class Override:
    """One key's new value and where it comes from (`--set`, or an environment variable's name)."""

    keys: tuple[str, ...]
    value: Any
    origin: str


class BadOverride(ValueError):
    """An override that cannot be read; the message says what is wrong with it."""


def parse_set(text: str) -> Override:
    """Parse `path=value`. Raises BadOverride."""
    keys: list[str] = []
    at = 0
    while at < len(text) and text[at] != "=":
        match = _PIECE.match(text, at)
        if match is None:
            raise BadOverride(
                f"cannot read the path at {text[at:]!r} (expected for example models.0.slo.prefill=2s)"
            )
        quoted, single, plain, index = match.groups()
        if quoted is not None:
            quoted = re.sub(r"\\(.)", r"\1", quoted)
        keys.append(next(part for part in (quoted, single, plain, index) if part is not None))
        at = match.end()
        if text[at : at + 1] == "." and at + 1 < len(text) and text[at + 1] not in "=.":
            at += 1
        elif text[at : at + 1] not in ("=", "[", ""):
            raise BadOverride(f"cannot read the path at {text[at:]!r} (quote keys that have dots or spaces)")
    if at >= len(text) or not keys:
        raise BadOverride("expected path=value, for example models.0.slo.prefill=2s")
    return Override(tuple(keys), _value(text[at + 1 :]), "--set")


def _value(text: str) -> Any:
    try:
        document = parse_yaml(text)
    except ConfigError as error:
        raise BadOverride(f"the value {text!r} {error.faults[0].message}") from error
    if document.faults:
        raise BadOverride(f"the value {text!r} has a key twice")
    return document.tree


def parse_overrides(sets: Sequence[str], env: Mapping[str, str]) -> tuple[list[Override], list[Fault]]:
    """All overrides in the order in which they apply, and what is wrong with the others."""
    found: list[Override] = []
    faults: list[Fault] = []
    for name in sorted(env):
        if not name.startswith(PREFIX):
            continue
        keys = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
        try:
            if not all(keys):
                raise BadOverride("expected CORAL__SECTION__KEY")
            found.append(Override(keys, _value(env[name]), name))
        except BadOverride as error:
            faults.append(Fault(f"environment variable {name}", str(error)))
    for text in sets:
        try:
            found.append(parse_set(text))
        except BadOverride as error:
            faults.append(Fault(f"--set {text}", str(error)))
    return found, faults


def apply_override(tree: Any, override: Override) -> tuple[Any, Keys]:
    """A copy of the tree with the override in it, and the path it went to. Raises BadOverride."""
    return _placed(tree, override.keys, override.value, ())


def _placed(tree: Any, keys: tuple[str, ...], value: Any, path: Keys) -> tuple[Any, Keys]:
    if not keys:
        return value, path
    key, rest = keys[0], keys[1:]
    if isinstance(tree, list):
        if not key.isdecimal() or int(key) > len(tree):
            known = (
                f"it has {len(tree)} item(s), and {len(tree)} would append"
                if key.isdecimal()
                else "it is a list"
            )
            raise BadOverride(f"{dotted(path)} has no item {key}: {known}")
        at = int(key)
        item, where = _placed(tree[at] if at < len(tree) else None, rest, value, (*path, at))
        return [*tree[:at], item, *tree[at + 1 :]], where
    if tree is None or (isinstance(tree, str) and _is_use(tree, path)):
        tree = {} if tree is None else {"use": tree}
    if not isinstance(tree, dict):
        raise BadOverride(f"{dotted(path)} is a {type(tree).__name__}, which has no key {key}")
    item, where = _placed(tree.get(key), rest, value, (*path, key))
    return {**tree, key: item}, where


def _is_use(tree: str, path: Keys) -> bool:
    """`router: least-load` is short for `router: {use: least-load}`."""
    return bool(path) and (path[-1] in USE_SECTIONS or path[:-1] == ("clouds",))
