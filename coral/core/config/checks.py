"""What is wrong with a config beyond the type of a single key. Works on the plain data, so that it speaks
also where some other key is faulty."""

from __future__ import annotations

from typing import Any

from coral.core.config.faults import Keys, dotted
from coral.errors import Fault


def faults_across(tree: Any) -> list[tuple[Keys, Fault]]:
    """Faults that only show when several keys are seen together."""
    if not isinstance(tree, dict):
        return []
    return [*_doubled_models(tree), *_too_long(tree), *_plaintext_channel(tree)]


def _doubled_models(tree: dict[str, Any]) -> list[tuple[Keys, Fault]]:
    found: list[tuple[Keys, Fault]] = []
    first: dict[str, int] = {}
    for i, model in enumerate(_items(tree, "models")):
        name = model.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            path: Keys = ("models", i, "name")
            message = f"{name!r} is also the name of models[{first[name]}]"
            found.append((path, Fault(dotted(path), message, "give each model a name of its own")))
        first.setdefault(name, i)
    return found


def _too_long(tree: dict[str, Any]) -> list[tuple[Keys, Fault]]:
    """A model longer than what its own shape can do."""
    found: list[tuple[Keys, Fault]] = []
    for i, model in enumerate(_items(tree, "models")):
        shape, longest = model.get("shape"), model.get("max_model_len")
        most = shape.get("max_positions") if isinstance(shape, dict) else None
        if isinstance(most, int) and isinstance(longest, int) and longest > most:
            path: Keys = ("models", i, "max_model_len")
            found.append(
                (path, Fault(dotted(path), f"{longest} is more than the shape's max_positions, {most}"))
            )
    return found


def _plaintext_channel(tree: dict[str, Any]) -> list[tuple[Keys, Fault]]:
    """A channel that does not encrypt, between machines of a network that is not said to be trusted."""
    serve = tree.get("serve")
    if not isinstance(serve, dict) or serve.get("channel") not in ("gloo", "nccl"):
        return []
    uses = [cloud.get("use") for cloud in _items(tree, "clouds")]
    if serve.get("trusted_network") is True or all(use == "local" for use in uses):
        return []
    path: Keys = ("serve", "channel")
    message = f"{serve['channel']} does not encrypt what goes between machines"
    return [(path, Fault(dotted(path), message, "say `trusted_network: true`, or leave it to `auto`"))]


def _items(tree: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = tree.get(key)
    if not isinstance(items, list | tuple):
        return []
    return [item if isinstance(item, dict) else {} for item in items]
