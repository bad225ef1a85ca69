"""Options of the `processes` executor."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coral.hookspecs.options import Options


class ProcessesOptions(Options):
    """How many processes build templates."""

    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Worker processes; as many as this process may use cores where not given."""
