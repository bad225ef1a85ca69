from __future__ import annotations

import numpy as np
import pytest

from coral.core.operate.demand import DemandSample
from coral.core.plan.forecast import DAY, LEAST, STEP_S, forecast, rates

pytest.importorskip("statsmodels", reason="statsmodels is not installed")


def history(steps: int, seed: int = 0) -> list[float]:
    """Counts of a day that swings between 1 and 9 requests/s."""
    rate = 5.0 + 4.0 * np.sin(2 * np.pi * np.arange(steps) / DAY)
    return [float(n / STEP_S) for n in np.random.default_rng(seed).poisson(rate * STEP_S)]


def test_the_morning_is_seen_coming_after_two_days() -> None:
    """Six hours before the peak the rate is 5; whoever looks half a day ahead has to see 9."""
    found = forecast(history(3 * DAY), horizon_s=DAY / 2 * STEP_S)
    assert found is not None
    assert found.method == "daily season"
    assert found.peak_per_s == pytest.approx(9.0, rel=0.05)
    near = forecast(history(3 * DAY), horizon_s=STEP_S)
    assert near is not None
    assert near.peak_per_s == pytest.approx(5.0, rel=0.1)


def test_young_history_is_smoothed_and_the_youngest_is_none() -> None:
    found = forecast(history(40), horizon_s=STEP_S)
    assert found is not None
    assert found.method == "trend"
    assert found.peak_per_s == pytest.approx(7.0, rel=0.15)
    assert forecast(history(LEAST - 1), horizon_s=STEP_S) is None


def test_nobody_is_forecast_where_nobody_came() -> None:
    found = forecast([0.0] * (2 * DAY), horizon_s=3600.0)
    assert found is not None
    assert found.peak_per_s == pytest.approx(0.0, abs=1e-9)


def test_samples_become_rates_and_gaps_go_on_as_before() -> None:
    def sample(end: float, requests: int) -> DemandSample:
        return DemandSample(at_s=end, span_s=STEP_S / 2, requests=requests)

    half = STEP_S / 2
    some = [sample(half, 100), sample(2 * half, 200), sample(3 * half, 400), sample(8 * half, 50)]
    found = rates(some, until_s=8 * half)
    assert found == pytest.approx([300 / STEP_S, 400 / half, 400 / half, 50 / half])
    assert rates([], until_s=10.0) == []
