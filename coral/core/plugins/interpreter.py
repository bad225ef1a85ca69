"""`engine.python` of the config: an engine's processes run in an environment of their own."""

from __future__ import annotations

import sys

import msgspec

from coral.errors import EngineError
from coral.hookspecs.engine import Launch


def in_environment(launch: Launch, python: str | None, engine: str) -> Launch:
    """The launch with `python` in place of our own interpreter; as it is where `python` is not given.

    Raises EngineError where the engine starts no Python that could be replaced.
    """
    if not python or python in launch.argv:
        return launch
    if sys.executable not in launch.argv:
        raise EngineError(
            f"engine {engine} starts no Python of its own that `engine.python` could replace",
            mend="remove `python` from the engine's section",
        )
    argv = tuple(python if word == sys.executable else word for word in launch.argv)
    return msgspec.structs.replace(launch, argv=argv)
