"""How much of a prompt a step takes beside sequences that decode: as much as keeps it within a target.

A plan promises a time per output token, and that steps with a chunk of a prompt in them bear it. How large
such a chunk may be depends on the device, the layers and the contexts; here it follows from the steps that
have run: seconds = those of decode rows alone + slope · prompt tokens.
"""

from __future__ import annotations

LEAST_CHUNK = 16
"""Prompt tokens that a step takes in any case: prompts get on whatever decode rows cost."""
UP, DOWN = 0.5, 0.1
"""Weight of the newest step where it was slower than expected, and where it was faster."""


class ChunkPace:
    """`target_s`: the longest a step should take while sequences decode; 0 = as long as it likes."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._rows_s = 0.0
        self._slope_s = 0.0

    def limit(self) -> int | None:
        """Prompt tokens of a step in which others decode; None = no limit is known."""
        if not self._target_s or not self._slope_s:
            return None
        return max(LEAST_CHUNK, int((self._target_s - self._rows_s) / self._slope_s))

    def ran(self, prompt_tokens: int, rows: int, seconds: float) -> None:
        """A step has run, of so many prompt tokens and so many decode rows."""
        if not prompt_tokens:
            self._rows_s = _nearer(self._rows_s, seconds)
        elif prompt_tokens >= LEAST_CHUNK:
            rest = seconds - (self._rows_s if rows else 0.0)
            self._slope_s = _nearer(self._slope_s, max(0.0, rest) / prompt_tokens)


def _nearer(value: float, seen: float) -> float:
    return value + (seen - value) * (UP if seen > value else DOWN) if value else seen
