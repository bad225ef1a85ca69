"""Options of the `mip` solver."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coral.hookspecs.options import Options


class MipOptions(Options):
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of the branch and bound; 1 is reproducible."""
    random_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Breaks ties."""
    preprocess: bool = True
    """Whether CBC simplifies an integer program before it branches."""
    log: bool = False
    """Print CBC's own log to standard output."""
