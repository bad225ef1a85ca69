"""Typed access to a GGUF file's key-value header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coral.errors import SourceError


class Fields:
    """Values by key; a key that is missing without a default, or of another type, raises SourceError."""

    def __init__(self, path: Path, reader: Any) -> None:
        self.path = path
        self._fields = reader.fields

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return value

    def integers(self, key: str) -> list[int]:
        value = self._value(key, None)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return value

    def _value(self, key: str, default: Any) -> Any:
        if key in self._fields:
            return self._fields[key].contents()
        if default is None:
            raise SourceError(f"{self.path} lacks {key}", mend="take a safetensors checkpoint of the model")
        return default

    def _wrong(self, key: str, value: Any, expected: str) -> SourceError:
        return SourceError(f"{self.path}: {key} is {type(value).__name__}, expected {expected}")
