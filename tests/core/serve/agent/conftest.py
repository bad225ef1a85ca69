"""Agents of a test, ended with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coral.core.serve.net.wire import AgentHello
from coral.testing.agent import PlayedCoordinator


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[float], PlayedCoordinator]]:
    made: list[PlayedCoordinator] = []

    def build(grace_s: float) -> PlayedCoordinator:
        made.append(PlayedCoordinator(tmp_path, grace_s))
        assert made[-1].expect(AgentHello).machine == "m-1"
        return made[-1]

    yield build
    for one in made:
        one.close()
