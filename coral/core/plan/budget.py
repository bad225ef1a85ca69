"""How much time and work the solves of one epoch may take together."""

from __future__ import annotations

import math
from collections.abc import Callable

from coral.hookspecs.planner import PlanOptions
from coral.types.program import Solution

Clock = Callable[[], float]
"""Seconds since some moment."""


class Budget:
    """Limits of one epoch, shared by its solves.

    With a `clock` a time limit counts from the budget's making, whatever the time went into; what solvers
    report is counted in any case. Without a time limit no clock is looked at: with a work limit alone
    the course of an epoch is reproducible.
    """

    def __init__(
        self,
        *,
        gap: float,
        time_limit_s: float | None = None,
        work_limit: int | None = None,
        parent: Budget | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.gap = gap
        self.seconds = 0.0
        """Of the solvers, as they report it."""
        self.work = 0
        self._time_limit_s = time_limit_s
        self._work_limit = work_limit
        self._parent = parent
        self._clock = clock if time_limit_s is not None else None
        self._began = self._clock() if self._clock is not None else 0.0

    @classmethod
    def of(cls, options: PlanOptions, clock: Clock | None = None) -> Budget:
        return cls(
            gap=options.gap, time_limit_s=options.time_limit_s, work_limit=options.work_limit, clock=clock
        )

    def part(self, share: float, *, gap: float | None = None) -> Budget:
        """A budget of a share of this one's limits, at most what is left; what it spends, this spends."""
        time, work = self.time_left_s, self.work_left
        if time is not None and self._time_limit_s is not None:
            time = min(time, share * self._time_limit_s)
        if work is not None and self._work_limit is not None:
            work = min(work, max(1, int(share * self._work_limit)))
        return Budget(
            gap=self.gap if gap is None else gap,
            time_limit_s=time,
            work_limit=work,
            parent=self,
            clock=self._clock,
        )

    def spend(self, solution: Solution) -> None:
        if solution.seconds > 0 and math.isfinite(solution.seconds):  # a solver may state anything
            self.seconds += solution.seconds
        self.work += max(0, solution.work)
        if self._parent is not None:
            self._parent.spend(solution)

    @property
    def time_left_s(self) -> float | None:
        if self._time_limit_s is None:
            return None
        passed = 0.0 if self._clock is None else self._clock() - self._began
        spent = max(self.seconds, passed)
        return max(0.0, self._time_limit_s - spent)

    @property
    def work_left(self) -> int | None:
        return None if self._work_limit is None else max(0, self._work_limit - self.work)

    @property
    def exhausted(self) -> bool:
        return self.time_left_s == 0.0 or self.work_left == 0
