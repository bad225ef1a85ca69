"""How fast requests leave, by which one that is refused is told when to come again."""

from __future__ import annotations

from collections import deque

SPAN_S = 30
"""Seconds that are looked back on."""
LEAST_S = 1.0
MOST_S = 60.0


class DrainRate:
    """Requests that have left in the last `SPAN_S` seconds, counted by second. Times are monotonic."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: deque[list[int]] = deque()
        """[second, requests], oldest first."""

    def left(self, now: float) -> None:
        """A request has left, whatever its end."""
        second = int(now)
        if not self._counts or self._counts[-1][0] != second:
            self._counts.append([second, 0])
            self._forget(now)
        self._counts[-1][1] += 1

    def per_s(self, now: float) -> float:
        """Requests per second; 0.0 where none has left lately."""
        self._forget(now)
        if not self._counts:
            return 0.0
        total = sum(count for _, count in self._counts)
        return total / max(1.0, now - self._counts[0][0])

    def wait_s(self, ahead: int, now: float) -> float | None:
        """Seconds until `ahead` requests have left at this rate; None where the rate is not known."""
        rate = self.per_s(now)
        return ahead / rate if rate > 0 else None

    def retry_after_s(self, ahead: int, now: float, otherwise_s: float) -> float:
        """What to tell one that finds `ahead` requests before it: within [`LEAST_S`, `MOST_S`] seconds."""
        wait_s = self.wait_s(ahead, now)
        return min(MOST_S, max(LEAST_S, otherwise_s if wait_s is None else wait_s))

    def _forget(self, now: float) -> None:
        while self._counts and self._counts[0][0] <= now - SPAN_S:
            self._counts.popleft()
