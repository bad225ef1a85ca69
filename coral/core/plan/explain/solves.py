"""Plans of changed views, all within one time limit."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from coral.errors import CoralError
from coral.hookspecs.planner import Library, Planner, View
from coral.hookspecs.solver import Solver
from coral.types.plan import Plan

Clock = Callable[[], float]
"""Seconds, from anywhere."""


class Solves:
    """Asks the planner again and again, until `limit_s` seconds of the clock are over (None: no limit).

    Each plan may take what is left, at most what the view itself allows. `count` plans were made.
    """

    def __init__(self, planner: Planner, solver: Solver, *, clock: Clock, limit_s: float | None) -> None:
        self._planner = planner
        self.solver = solver
        self._clock = clock
        self._started = clock()
        self.limit_s = limit_s
        self.count = 0

    @property
    def seconds(self) -> float:
        return self._clock() - self._started

    @property
    def left_s(self) -> float | None:
        return None if self.limit_s is None else max(0.0, self.limit_s - self.seconds)

    @property
    def over(self) -> bool:
        return self.left_s == 0.0

    def plan(self, view: View, library: Library, *, share: float = 1.0) -> Plan | None:
        """Within a share of the time that is left. None where it is over or the planner failed: a question
        without an answer, no fault."""
        left = self.left_s
        if left == 0.0:
            return None
        own = view.options.time_limit_s
        limit = own if left is None else min(left * share, left if own is None else own)
        try:
            found = self._planner.plan(
                replace(view, options=replace(view.options, time_limit_s=limit)), library, self.solver
            )
        except CoralError:
            return None
        self.count += 1
        return found
