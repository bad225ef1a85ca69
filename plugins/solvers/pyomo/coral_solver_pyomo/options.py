"""Options of the `pyomo` solver."""

from __future__ import annotations

from pydantic import Field

from coral.hookspecs.options import LocalPath, Options

Value = bool | int | float | str


class LimitOptions(Options):
    """How a solver's own options are called: for one whose names this plugin does not know."""

    time: str | None = None
    """Option that takes a time limit in seconds."""
    gap: str | None = None
    """Option that takes a relative gap."""
    nodes: str | None = None
    """Option that takes a limit of branch-and-bound nodes."""
    iterations: str | None = None
    """Option that takes a limit of simplex iterations."""


class PyomoOptions(Options):
    solver: str = "appsi_highs"
    """Name of the solver at Pyomo's SolverFactory."""
    executable: LocalPath | None = None
    """The solver's program, where it is not on the PATH."""
    solver_options: dict[str, Value] = Field(default={})
    """Handed to the solver as they are, by its own names."""
    limit_options: LimitOptions = LimitOptions()
    """Names that limits have at this solver; needed for solvers that the README does not list."""
    log: bool = False
    """Print the solver's own log to standard output."""
