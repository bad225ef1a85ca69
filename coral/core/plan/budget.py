"""How much time and work the solves of one epoch may take together."""

from __future__ import annotations

from coral.hookspecs.planner import PlanOptions
from coral.types.program import Solution


class Budget:
    """Limits of one epoch, shared by its solves. Only what solvers report is counted: with a work limit
    and no time limit the course of an epoch is reproducible."""

    def __init__(
        self,
        *,
        gap: float,
        time_limit_s: float | None = None,
        work_limit: int | None = None,
        parent: Budget | None = None,
    ) -> None:
        self.gap = gap
        self.seconds = 0.0
        self.work = 0
        self._time_limit_s = time_limit_s
        self._work_limit = work_limit
        self._parent = parent

    @classmethod
    def of(cls, options: PlanOptions) -> Budget:
        return cls(gap=options.gap, time_limit_s=options.time_limit_s, work_limit=options.work_limit)

    def part(self, share: float, *, gap: float | None = None) -> Budget:
        """A budget of a share of this one's limits, at most what is left; what it spends, this spends."""
        time, work = self.time_left_s, self.work_left
        if time is not None and self._time_limit_s is not None:
            time = min(time, share * self._time_limit_s)
        if work is not None and self._work_limit is not None:
            work = min(work, max(1, int(share * self._work_limit)))
        return Budget(gap=self.gap if gap is None else gap, time_limit_s=time, work_limit=work, parent=self)

    def spend(self, solution: Solution) -> None:
        self.seconds += solution.seconds
        self.work += solution.work
        if self._parent is not None:
            self._parent.spend(solution)

    @property
    def time_left_s(self) -> float | None:
        return None if self._time_limit_s is None else max(0.0, self._time_limit_s - self.seconds)

    @property
    def work_left(self) -> int | None:
        return None if self._work_limit is None else max(0, self._work_limit - self.work)

    @property
    def exhausted(self) -> bool:
        return self.time_left_s == 0.0 or self.work_left == 0
