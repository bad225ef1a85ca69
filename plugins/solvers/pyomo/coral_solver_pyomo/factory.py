"""Solvers of Pyomo's factory: found by name, or an error that names those that are there."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coral.errors import PluginError
from coral_solver_pyomo.dialects import DIALECTS

if TYPE_CHECKING:
    from coral_solver_pyomo.options import PyomoOptions


def pyomo_solver(options: PyomoOptions) -> Any:
    """Raises PluginError where Pyomo does not know the solver, or it is not installed."""
    import pyomo.environ as pe

    known = sorted(name for name in pe.SolverFactory if not name.startswith("_"))
    name = options.solver
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise PluginError(
            f"Pyomo knows no solver {name!r}" + (f", did you mean {close[0]}?" if close else ""),
            mend=f"installed: {', '.join(installed())}; all names: {', '.join(known)}",
        )
    with quiet():
        solver = _made(name, options)
        there = _available(solver)
    if not there:
        where = f" at {options.executable}" if options.executable else ""
        raise PluginError(
            f"solver {name!r} is not installed{where}",
            mend=f"install it, or name its program with `executable:`; installed: {', '.join(installed())}",
        )
    return solver


def installed() -> list[str]:
    """Those of the solvers whose limits this plugin knows that can be used here."""
    import pyomo.environ as pe

    with quiet():
        return [name for name in DIALECTS if _available(pe.SolverFactory(name))] or ["none"]


def _made(name: str, options: PyomoOptions) -> Any:
    import pyomo.environ as pe

    if options.executable is None:
        return pe.SolverFactory(name)
    return pe.SolverFactory(name, executable=str(options.executable))


def _available(solver: Any) -> bool:
    try:
        return bool(solver.available(exception_flag=False))
    except Exception:  # every interface has its own way of not being there
        return False


@contextmanager
def quiet() -> Iterator[None]:
    """Pyomo warns of each solver that it looks for and does not find."""
    log = logging.getLogger("pyomo")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
