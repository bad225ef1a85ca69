"""Body to request: malformed JSON and wrong types become refusals that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from coral.errors import RequestError

T = TypeVar("T")

_EXPECTED = re.compile(r"Expected `(.+?)`, got `(.+?)`")
_MISSING = re.compile(r"missing required field `(.+?)`")
_PATH = re.compile(r" - at (`key` in )?`\$\.?(.*?)`$")
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises RequestError (400)."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except RecursionError as error:
        raise RequestError("The body is nested too deep.", code="invalid_json") from error
    except (ValueError, msgspec.DecodeError) as error:
        raise RequestError(
            f"The body is not valid JSON: {error}. Send one JSON object in UTF-8.", code="invalid_json"
        ) from error


def _wrong_type(text: str) -> RequestError:
    at = _PATH.search(text)
    path = at[2] if at else ""
    if missing := _MISSING.search(text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(f"'{path}' is required.", param=path, code="missing_required_parameter")
    name = f"'{path}'" if path else "The body"
    if expected := _EXPECTED.search(text):
        kind = "The keys of " + name if at and at[1] else name
        wanted = _words(expected[1])
        return RequestError(
            f"{kind} must be {wanted}, not {_words(expected[2])}.", param=path or None, code="invalid_type"
        )
    said = text[: at.start()] if at else text  # a number that no type can hold, for one
    return RequestError(f"{name} is not valid: {said}.", param=path or None, code="invalid_value")


def _words(types: str) -> str:
    """`int | null` as "an integer"; null is always allowed where it is listed, so it is not said."""
    names = [name for name in types.split(" | ") if name != "null"] or ["null"]
    return " or ".join(_WORDS.get(name, name) for name in names)
