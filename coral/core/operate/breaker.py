"""A circuit breaker: whoever keeps failing is left alone for a while, then tried with one request."""

from __future__ import annotations

from collections import deque

LOOKS_AT = 20
"""Outcomes that are looked at, the latest ones."""
WINDOW_S = 30.0
LEAST_FAILURES = 5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STABLE_S = 60.0
"""Whoever has served for so long since its last pause is begun with from the shortest one again."""


class Breaker:
    """Of one instance. Closed, until at least `LEAST_FAILURES` and half of its latest outcomes are
    failures; then open for a pause, which doubles from one opening to the next; then one request is let
    through, and its outcome decides. Times are monotonic seconds.
    """

    __slots__ = ("_closed_at", "_outcomes", "_pause_s", "_probing", "_until")

    def __init__(self) -> None:
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=LOOKS_AT)
        self._pause_s = 0.0
        """Of the last opening; 0 once that is long ago."""
        self._until: float | None = None
        self._probing: float | None = None
        self._closed_at = 0.0

    @property
    def closed(self) -> bool:
        return self._until is None

    def allows(self, now: float) -> bool:
        """Whether a request may go there now. A probe of which nothing is heard blocks for one pause."""
        if self._until is None:
            return True
        if now < self._until:
            return False
        return self._probing is None or now - self._probing >= self._pause_s

    def opens_in_s(self, now: float) -> float:
        """Seconds until it lets anything through, 0 where it does."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def began(self, now: float) -> None:
        """A request goes there; while the breaker is half open it is the probe."""
        if self._until is not None:
            self._probing = now

    def succeeded(self, now: float) -> None:
        """Something that went there was served."""
        if self._until is None:
            self._outcomes.append((now, True))
            if self._pause_s and now - self._closed_at >= STABLE_S:
                self._pause_s = 0.0
            return
        if self._probing is not None:  # else from before it opened: it says nothing of now
            self._until = self._probing = None
            self._closed_at = now
            self._outcomes.clear()

    def failed(self, now: float) -> bool:
        """Something failed there. Whether the breaker has opened by it."""
        if self._until is not None:
            if self._probing is None:
                return False
            self._open(now)
            return True
        self._outcomes.append((now, False))
        recent = [ok for at, ok in self._outcomes if now - at <= WINDOW_S]
        failures = recent.count(False)
        if failures < LEAST_FAILURES or 2 * failures < len(recent):
            return False
        self._open(now)
        return True

    def withdrawn(self) -> None:
        """A probe was taken back without an outcome (its client has left): the next one may go."""
        self._probing = None

    def _open(self, now: float) -> None:
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s) if self._pause_s else FIRST_PAUSE_S
        self._until = now + self._pause_s
        self._probing = None
        self._outcomes.clear()
