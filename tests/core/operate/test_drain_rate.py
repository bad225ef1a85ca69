from __future__ import annotations

import pytest

from coral.core.operate.drain_rate import LEAST_S, MOST_S, SPAN_S, DrainRate


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = DrainRate()
    for i in range(100):
        rate.left(i / 10)
    assert rate.per_s(10.0) == pytest.approx(10.0)
    assert rate.wait_s(40, 10.0) == pytest.approx(4.0)
    assert rate.per_s(10.0 + SPAN_S) == 0.0


def test_without_a_rate_there_is_no_estimate() -> None:
    rate = DrainRate()
    assert rate.wait_s(3, 0.0) is None
    assert rate.retry_after_s(3, 0.0, otherwise_s=7.0) == 7.0


def test_what_is_told_stays_within_bounds() -> None:
    rate = DrainRate()
    rate.left(0.0)
    assert rate.retry_after_s(10_000, 1.0, otherwise_s=1.0) == MOST_S
    for _ in range(1000):
        rate.left(1.0)
    assert rate.retry_after_s(1, 1.0, otherwise_s=1.0) == LEAST_S


def test_it_remembers_no_more_than_its_span() -> None:
    rate = DrainRate()
    for i in range(10_000):
        rate.left(float(i))
    assert len(rate._counts) <= SPAN_S + 1
