"""Types for a plugin's options: durations, sizes, paths and secrets as people write them in a config.

This module needs pydantic; import it from a plugin's `options.py` only, never from its top module.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from coral.errors import UsageError

__all__ = ["Bytes", "Duration", "LocalPath", "Options", "Rate", "Secret", "near_miss"]

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1} | {
    f"{prefix}{'iB' if base == 1024 else 'B'}": base**power
    for base in (1000, 1024)
    for power, prefix in enumerate(("k", "M", "G", "T", "P"), start=1)
}
_BYTES["KB"], _BYTES["KiB"] = 1000, 1024
UNKNOWN_KEY = "unknown_key"
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-zµ]+)\s*")


def _duration(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("not a duration: expected seconds or for example '1800ms', '6m', '1h30m'")
    if not isinstance(value, str):
        return value
    if (match := _QUANTITY.fullmatch(value)) and match[2] in _SECONDS | {"": 1.0}:
        # Divided where the unit is a fraction, so that 1800ms is 1.8 and not 1.8000000000000003.
        scale = _SECONDS[match[2]] if match[2] else 1.0
        return float(match[1]) / round(1 / scale) if scale < 1 else float(match[1]) * scale
    parts = _PART.findall(value)
    whole = "".join(match.group() for match in _PART.finditer(value)) == value.strip()
    if len(parts) > 1 and whole and all(unit in _SECONDS for _, unit in parts):
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise ValueError(
        f"not a duration: {value!r} (for example '1800ms', '30s', '6m', '1h30m'; a bare number is seconds)"
    )


def _bytes(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("not a size: expected bytes or for example '24GiB', '300MB'")
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    if match and match[2] in _BYTES and math.isfinite(size := float(match[1]) * _BYTES[match[2]]):
        return round(size)
    raise ValueError(f"not a size: {value!r} (for example '24GiB', '300MB'; a bare number is bytes)")


def _rate(value: object) -> object:
    """Per-second quantities: `100Gbit/s` and `12.5GB/s` are bytes per second."""
    if isinstance(value, bool):
        raise ValueError("not a rate: expected bytes per second or for example '12.5GB/s', '100Gbit/s'")
    if not isinstance(value, str):
        return value
    amount, slash, per = value.strip().partition("/")
    if slash and per.strip() == "s":
        if amount.endswith("bit"):
            return float(str(_bytes(amount[:-3] + "B"))) / 8
        return float(str(_bytes(amount)))
    raise ValueError(
        f"not a rate: {value!r} (for example '12.5GB/s', '100Gbit/s'; a bare number is bytes per second)"
    )


def _local(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("folder", Path())
    return Path(os.path.normpath(Path(base, path.expanduser()).absolute()))


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    Field(ge=0, allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "format": "duration"}),
]
"""Seconds (float). Accepts numbers (seconds) and `1800ms`, `30s`, `6m`, `1h30m`."""

Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}], "format": "bytes"}),
]
"""Bytes (int). Accepts numbers and `24GiB` (powers of 1024), `300MB` (powers of 1000)."""

Rate = Annotated[
    float,
    BeforeValidator(_rate),
    Field(ge=0, allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "format": "rate"}),
]
"""Bytes per second (float). Accepts numbers and `12.5GB/s`, `100Gbit/s`."""

LocalPath = Annotated[Path, AfterValidator(_local), WithJsonSchema({"type": "string", "format": "path"})]
"""An absolute path on this machine; given ones count from the folder of the config file, `~` is home."""


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_key(word: str, known: Iterable[str]) -> str:
    """The message for a key that no schema has, with what was probably meant."""
    names = sorted(known)
    close = near_miss(word, names)
    return (
        f"unknown key (did you mean {close}?)"
        if close
        else f"unknown key (known: {', '.join(names) or 'none'})"
    )


def named_unknown_keys(error: ValidationError, known: Iterable[str]) -> list[InitErrorDetails]:
    """The errors of a model, its own unknown keys with a near miss out of `known`."""
    names = list(known)
    details: list[InitErrorDetails] = []
    for line in error.errors(include_url=False):
        message = line["msg"].removeprefix("Value error, ")
        word = "coral"
        if line["type"] in ("extra_forbidden", UNKNOWN_KEY) and len(line["loc"]) == 1:
            word, message = UNKNOWN_KEY, unknown_key(str(line["loc"][0]), names)
        kind = PydanticCustomError(word, "{text}", {"text": message})
        details.append(InitErrorDetails(type=kind, loc=line["loc"], input=None))
    return details


class Options(BaseModel):
    """Base of a plugin's options: frozen, unknown keys refused with a near miss, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            details = named_unknown_keys(error, cls.model_fields)
            raise ValidationError.from_exception_data(cls.__name__, details) from None


class Secret(BaseModel):
    """A secret by reference, `{env: NAME}` or `{file: path}`. It is read where it is used, and neither
    printed nor kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str | None = Field(default=None, min_length=1)
    file: LocalPath | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _by_reference(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict) or len(value) != 1 or not set(value) <= {"env", "file"}:
            raise ValueError("a secret is given by reference: {env: NAME} or {file: path}")
        return handler(value)

    @model_serializer
    def _reference(self) -> dict[str, str]:
        return {"env": self.env} if self.env is not None else {"file": str(self.file)}

    def reveal(self) -> str:
        """The secret itself. Raises UsageError where the reference leads nowhere."""
        if self.env is not None:
            if self.env not in os.environ:
                raise UsageError(f"environment variable {self.env} is not set", mend=f"export {self.env}=…")
            return os.environ[self.env]
        assert self.file is not None  # the validator demands one of both
        try:
            return self.file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"cannot read the secret in {self.file}: {error.strerror}") from error
