"""From pydantic's errors to faults with a dotted path."""

from __future__ import annotations

from pydantic import ValidationError

from coral.errors import Fault


def faults_of(error: ValidationError) -> list[Fault]:
    """All faults, in the order of the schema."""
    return [Fault(dotted(line["loc"]), line["msg"].removeprefix("Value error, ")) for line in error.errors()]


def dotted(path: tuple[int | str, ...]) -> str:
    """`models[1].slo.prefill`; keys with dots or spaces in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        plain = part.replace("_", "").replace("-", "").isalnum()
        text += ("." if text else "") + (part if plain else f'"{part}"')
    return text
