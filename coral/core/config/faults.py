"""From pydantic's errors to faults with a dotted path."""

from __future__ import annotations

from pydantic import ValidationError

from coral.errors import Fault

Keys = tuple[int | str, ...]

_WORDING = {
    "Field required": "missing",
    "Input should be a valid dictionary or instance of": "expected a section",
}


def faults_of(error: ValidationError) -> list[tuple[Keys, Fault]]:
    """All faults with their paths, in the order of the schema."""
    lines = error.errors(include_url=False, include_input=False, include_context=False)
    paths = [line["loc"] for line in lines]
    found: list[tuple[Keys, Fault]] = []
    for line in lines:
        path = line["loc"]
        message = line["msg"].removeprefix("Value error, ")
        inner = any(other[: len(path)] == path and len(other) > len(path) for other in paths)
        if inner and message.startswith("Tuple should have at least"):
            continue  # its items are faulty, and those are listed
        found.append((path, Fault(dotted(path), reworded(message))))
    return found


def reworded(message: str) -> str:
    """pydantic's message in the words of a config file."""
    for start, words in _WORDING.items():
        if message.startswith(start):
            return words
    message = message.replace("Input should be", "must be").replace("String should", "must")
    return message.replace("Tuple should have at least 1 item after validation, not 0", "must have an item")


def dotted(path: Keys) -> str:
    """`models[1].slo.prefill`; keys with dots or spaces in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        plain = part.replace("_", "").replace("-", "").isalnum()
        text += ("." if text else "") + (part if plain else f'"{part}"')
    return text
