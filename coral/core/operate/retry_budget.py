"""How many requests may go on elsewhere: a token bucket, so that what fails is not asked for ever more."""

from __future__ import annotations


class RetryBudget:
    """Every request that is submitted earns `share` of a retry, every second `per_s`; at most `burst` are
    kept. Whoever finds it empty waits, and is not given up: the budget paces retries, a deadline ends them.

    Times are monotonic seconds.
    """

    def __init__(self, *, share: float, per_s: float, burst: float) -> None:
        self._share = share
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._balance = self._burst
        self._at = float("-inf")

    def earn(self) -> None:
        """A request has been submitted."""
        self._balance = min(self._burst, self._balance + self._share)

    def spend(self, now: float) -> bool:
        """Take one retry, if there is one."""
        if self.left(now) < 1.0:
            return False
        self._balance -= 1.0
        return True

    def give_back(self) -> None:
        """A retry that was taken came to nothing: there was nowhere to go."""
        self._balance = min(self._burst, self._balance + 1.0)

    def left(self, now: float) -> float:
        """Retries that may be made now."""
        if now > self._at:
            if self._at > float("-inf"):
                self._balance = min(self._burst, self._balance + (now - self._at) * self._per_s)
            self._at = now
        return self._balance
