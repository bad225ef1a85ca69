"""The arrival rate to come, from what it was: exponential smoothing (Holt-Winters) with a daily season.

By statsmodels. On the roots of the rates, since the variance of counts grows with them; the trend is damped.
A season needs two days of history; less history is smoothed without one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from coral.core.operate.demand import DemandSample

STEP_S = 900.0
DAY = round(86_400.0 / STEP_S)
LEAST = 12
"""Steps below which nothing is forecast."""


class Forecast(Struct, frozen=True, kw_only=True):
    """`peak_per_s`: the highest mean rate within the horizon. `steps`: of history, each `STEP_S` long."""

    peak_per_s: float
    method: Literal["daily season", "trend"]
    steps: int


def rates(samples: Sequence[DemandSample], *, until_s: float) -> list[float]:
    """Requests/s by steps that end at `until_s`, the oldest first; steps in which nobody measured take the
    rate before."""
    if not samples:
        return []
    first = min(sample.at_s - sample.span_s for sample in samples)
    count = int((until_s - first) // STEP_S)
    requests, seconds = np.zeros(count), np.zeros(count)
    for sample in samples:
        at = count - 1 - int((until_s - (sample.at_s - sample.span_s / 2)) // STEP_S)
        if 0 <= at < count:
            requests[at] += sample.requests
            seconds[at] += sample.span_s
    found: list[float] = []
    for n, s in zip(requests, seconds, strict=True):
        known = s >= STEP_S / 10
        found.append(float(n / s) if known else (found[-1] if found else 0.0))
    return found


def forecast(history: Sequence[float], *, horizon_s: float) -> Forecast | None:
    """None where there is too little history. Raises ImportError without statsmodels, ValueError where it
    cannot be smoothed."""
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    if len(history) < LEAST:
        return None
    seasonal = len(history) >= 2 * DAY
    ahead = max(1, int(np.ceil(horizon_s / STEP_S)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not converged is a fit all the same
        fitted = ExponentialSmoothing(
            np.sqrt(np.array(history)),
            trend="add",
            damped_trend=True,
            seasonal="add" if seasonal else None,
            seasonal_periods=DAY if seasonal else None,
            initialization_method="heuristic" if seasonal else "estimated",
        ).fit()
        roots = np.maximum(0.0, np.asarray(fitted.forecast(ahead), dtype=np.float64))
    if not np.all(np.isfinite(roots)):
        raise ValueError("the smoothed rates are not finite")
    method: Literal["daily season", "trend"] = "daily season" if seasonal else "trend"
    return Forecast(peak_per_s=float(np.max(roots) ** 2), method=method, steps=len(history))
