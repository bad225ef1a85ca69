"""Options of the `ipopt` solver."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from coral.hookspecs.options import Options


class IpoptOptions(Options):
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-9
    """Relative error of the optimality conditions at which Ipopt ends."""
    max_iterations: Annotated[int, Field(ge=1)] = 3000
    """Most iterations of a solve that is given no work limit."""
    solver_options: dict[str, int | float | str] = Field(default={})
    """Ipopt's own options, handed to it as they are."""
    log: bool = False
    """Print Ipopt's own log to standard output."""
