"""What a plugin offers: a named component with options and a builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from coral.hookspecs import API_VERSION


class Component(Struct, frozen=True, kw_only=True):
    """One choice for a `use:` section of the config.

    `options` is a pydantic model class (or "module:attribute" that names one): the other keys of the
    section are validated by it. `build` is called with the validated options and returns the thing
    itself (a Solver, an Engine, ...). Both may be strings "module:attribute", imported only where the
    component is used: importing a plugin must cost nothing.
    """

    name: str
    summary: str
    options: str | type[Any]
    build: str | Callable[[Any], Any]
    api: int = API_VERSION


class EngineComponent(Component, frozen=True, kw_only=True):
    """An engine has a second half that runs in the worker, without pydantic.

    `load` is called there with a `StageSpec` and returns a `StageRunner`.
    """

    load: str | Callable[[Any], Any]
