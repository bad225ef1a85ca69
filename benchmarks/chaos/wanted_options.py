"""Options of the planner in `wanted`, apart from it: workers, which load that too, need no pydantic."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from benchmarks.chaos.wanted import WantedPlanner
from coral.hookspecs.options import LocalPath, Options


class WantedOptions(Options):
    file: LocalPath
    """Where it says what is wanted."""
    machines: Annotated[int, Field(ge=1)] = 1
    """How many machines to hold, all of the first offer's type."""


def build(options: WantedOptions) -> WantedPlanner:
    return WantedPlanner(options.file, options.machines)
