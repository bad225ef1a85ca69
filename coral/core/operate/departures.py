"""When what is measured departs so far from what the plan was made for that it should be made anew."""

from __future__ import annotations

from coral.core.operate.demand import Measured, leaps
from coral.types.model import Demand

CALM = 1.1
"""Times what is planned for, below which it is calm again and can jump anew."""
DRIFT = 1.25
"""Ratio of mean lengths, in either direction, at which they have drifted."""
SETTLED = 1.1
ENOUGH_REQUESTS = 100.0


class Jump:
    """Says once that the rate has jumped; again only when it has been calm in between."""

    def __init__(self) -> None:
        self._armed = True

    def look(self, measured: Measured, planned: Demand) -> bool:
        expected = planned.requests_per_s * measured.window_s
        count = measured.quick_per_s * measured.window_s
        if count <= CALM * expected:
            self._armed = True
        far = leaps(count, expected)
        jumped, self._armed = far and self._armed, self._armed and not far
        return jumped


class Drift:
    """Says once that mean lengths have left those of `lengths`; again only when they had come back."""

    def __init__(self, ratio: float = DRIFT) -> None:
        self._ratio = ratio
        self._armed = True

    def look(self, measured: Measured, lengths: Demand) -> bool:
        if measured.sizes_seen < ENOUGH_REQUESTS:
            return False
        ratios = (
            measured.input_tokens / lengths.input_tokens,
            measured.output_tokens / lengths.output_tokens,
        )
        most = max(max(ratio, 1.0 / ratio) for ratio in ratios)
        if most <= SETTLED:
            self._armed = True
        far = most >= self._ratio
        drifted, self._armed = far and self._armed, self._armed and not far
        return drifted
