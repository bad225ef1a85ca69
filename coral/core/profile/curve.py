"""A non-decreasing curve of seconds over tokens through measured points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from coral.types.program import Floats


class Curve(Struct, frozen=True, kw_only=True):
    """Straight between `tokens`, constant below the first, by `slope` beyond the last. `noise`: the largest
    relative distance of a measured point from the curve."""

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    slope: float
    noise: float

    def __call__(self, tokens: Any) -> Any:
        inside = np.interp(tokens, self.tokens, self.seconds)
        return inside + self.slope * np.maximum(tokens - self.tokens[-1], 0.0)


def curve(points: Sequence[tuple[float, float]], least_slope: float = 0.0) -> Curve:
    """Through the means of points (tokens, seconds) of equal tokens, made non-decreasing by pooling
    neighbours that are not (least squares). Beyond the last it goes on by the slope of the last third of the
    points, or by `least_slope` where that is steeper."""
    tokens = np.unique([point[0] for point in points])
    mean = np.array([np.mean([t for n, t in points if n == one]) for one in tokens])
    weight = np.array([sum(n == one for n, _ in points) for one in tokens], float)
    fitted = isotonic(mean, weight)
    third = max(1, len(tokens) // 3)
    rise, run = fitted[-1] - fitted[-1 - third :][0], tokens[-1] - tokens[-1 - third :][0]
    slope = rise / run if run > 0 else fitted[-1] / tokens[-1]
    spread = [abs(float(np.interp(n, tokens, fitted)) / t - 1) for n, t in points if t > 0]
    return Curve(
        tokens=tuple(map(float, tokens)),
        seconds=tuple(map(float, fitted)),
        slope=max(least_slope, float(slope)),
        noise=max(spread, default=0.0),
    )


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The non-decreasing sequence nearest to `values` in weighted least squares: pool adjacent violators."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((float(value), float(weight), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v2, w2, n2), (v1, w1, n1) = pools.pop(), pools.pop()
            pools.append(((v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2))
    return np.repeat([value for value, _, _ in pools], [count for _, _, count in pools])
