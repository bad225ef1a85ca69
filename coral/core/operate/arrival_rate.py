"""Arrivals per second, as an average in which what happened a half-life ago counts half."""

from __future__ import annotations

import math


class DecayedCount:
    """A count whose parts lose half their weight every half-life. Times in seconds of one clock."""

    def __init__(self, half_life_s: float, now: float) -> None:
        self.half_life_s = half_life_s
        self._since = self._at = now
        self._value = 0.0

    def add(self, now: float, count: float = 1.0) -> None:
        self._value = self.at(now) + count
        self._at = max(self._at, now)

    def at(self, now: float) -> float:
        return self._value * math.exp2(-max(0.0, now - self._at) / self.half_life_s)

    def window_s(self, now: float) -> float:
        """How many seconds' arrivals the count stands for: less while it is young."""
        whole = self.half_life_s / math.log(2.0)
        return whole * (1.0 - math.exp2(-max(0.0, now - self._since) / self.half_life_s))

    def rate(self, now: float) -> float:
        """Per second, without bias from its start; 0 where nothing has been seen yet."""
        window_s = self.window_s(now)
        return self.at(now) / window_s if window_s > 0 else 0.0
