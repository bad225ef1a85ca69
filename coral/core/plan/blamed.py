"""A planner may be anyone's: what it raises that is no error of ours is told with its name and place."""

from __future__ import annotations

import traceback
from pathlib import Path

from coral.errors import CoralError
from coral.hookspecs.planner import Library, Planner, View
from coral.hookspecs.solver import Solver
from coral.types.plan import Plan


class BlamedPlanner:
    """`coral.hookspecs.planner.Planner` around the planner of that name."""

    def __init__(self, planner: Planner, name: str) -> None:
        self._planner = planner
        self._name = name

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """Raises CoralError, that of the planner or one that says where the planner failed."""
        try:
            found = self._planner.plan(view, library, solver)
        except CoralError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            raise CoralError(
                f"planner {self._name!r} failed: {type(error).__name__}: {error} ({place})",
                mend="this is a fault of the planner; another one: `plan: {planner: {use: ...}}`",
            ) from error
        if not isinstance(found, Plan):
            raise CoralError(
                f"planner {self._name!r} gave a {type(found).__name__}, not a Plan",
                mend="this is a fault of the planner; another one: `plan: {planner: {use: ...}}`",
            )
        return found
