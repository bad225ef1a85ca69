from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coral.core.operate.arrival_rate import DecayedCount
from coral.core.operate.demand import DemandMeter, DemandSample, planned_demand
from coral.core.operate.departures import Drift, Jump
from coral.core.operate.request_sizes import RequestSizes, binned, one
from coral.types.model import Demand, RequestClass

HALF_S = 600.0
CONFIGURED = Demand(
    requests_per_s=2.0,
    classes=(RequestClass(input_tokens=100.0, output_tokens=20.0),),
    input_tokens_quantile=100.0,
)


def meter() -> DemandMeter:
    return DemandMeter(HALF_S, 0.95, 0.0)


def arrive(one: DemandMeter, draw: Random, start: float, end: float, per_s: float) -> None:
    at = start
    while (at := at + draw.expovariate(per_s)) < end:
        one.arrived(at)


def test_a_steady_rate_is_found_from_the_start_on() -> None:
    count = DecayedCount(HALF_S, 0.0)
    for i in range(6000):
        count.add(i * 0.5 + 0.5)
        if i > 20:
            assert count.rate(i * 0.5 + 0.5) == pytest.approx(2.0, rel=0.06)
    assert count.rate(3000.0) == pytest.approx(2.0, rel=0.01)


def test_what_happened_a_half_life_ago_counts_half() -> None:
    count = DecayedCount(HALF_S, 0.0)
    count.add(100.0, 8.0)
    assert count.at(100.0 + HALF_S) == pytest.approx(4.0)
    count.add(100.0 + HALF_S)
    assert count.at(100.0 + 2 * HALF_S) == pytest.approx(2.5)


def test_the_quick_rate_sees_a_jump_first_and_the_demand_follows_at_once() -> None:
    one, draw = meter(), Random(1)
    arrive(one, draw, 0.0, 7200.0, 2.0)
    before = one.measured(7200.0)
    assert before.requests_per_s == pytest.approx(2.0, rel=0.1)
    arrive(one, draw, 7200.0, 7320.0, 8.0)
    after = one.measured(7320.0)
    assert after.requests_per_s < 4.0 < after.quick_per_s
    planned = planned_demand(CONFIGURED, after, half_life_s=HALF_S, least_share=0.1)
    assert planned.requests_per_s == after.quick_per_s
    calm = planned_demand(CONFIGURED, before, half_life_s=HALF_S, least_share=0.1)
    assert calm.requests_per_s == pytest.approx(2.0, rel=0.1), "the quick rate's noise is no jump"


def test_the_config_stands_in_for_what_has_not_been_seen() -> None:
    one = meter()
    young = planned_demand(CONFIGURED, one.measured(1.0), half_life_s=HALF_S, least_share=0.25)
    assert young.requests_per_s == pytest.approx(2.0, rel=0.01)
    assert young.classes == CONFIGURED.classes
    idle = planned_demand(CONFIGURED, one.measured(20 * HALF_S), half_life_s=HALF_S, least_share=0.25)
    assert idle.requests_per_s == 0.5, "nobody came, but a quarter is kept"
    for _ in range(450):
        one.finished(10.0, 300, 10)
    mixed = planned_demand(CONFIGURED, one.measured(10.0), half_life_s=HALF_S, least_share=0.25)
    assert mixed.input_tokens == pytest.approx(0.9 * 300 + 0.1 * 100)
    assert mixed.output_tokens == pytest.approx(0.9 * 10 + 0.1 * 20)
    assert mixed.input_tokens_quantile == pytest.approx(0.9 * 300 + 0.1 * 100)
    assert sum(c.share for c in mixed.classes) == pytest.approx(1.0)


def test_a_forecast_takes_the_place_of_the_measured_rate() -> None:
    one = meter()
    arrive(one, Random(2), 0.0, 40 * HALF_S, 1.0)
    measured = one.measured(40 * HALF_S)
    planned = planned_demand(CONFIGURED, measured, half_life_s=HALF_S, least_share=0.0, expected_per_s=5.0)
    assert planned.requests_per_s == pytest.approx(5.0)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 5_000)), min_size=1, max_size=60),
    st.integers(1, 8),
)
def test_merged_classes_keep_means_and_shares(requests: list[tuple[int, int]], most: int) -> None:
    sizes = RequestSizes(HALF_S)
    for tokens in requests:
        sizes.add(5.0, one(*tokens))
    classes = sizes.classes(most)
    assert len(classes) <= most
    assert sum(c.share for c in classes) == pytest.approx(1.0)
    assert sum(c.share * c.input_tokens for c in classes) == pytest.approx(
        sum(i for i, _ in requests) / len(requests)
    )
    assert sum(c.share * c.output_tokens for c in classes) == pytest.approx(
        sum(o for _, o in requests) / len(requests)
    )
    largest = sorted(i for i, _ in requests)[math.ceil(0.95 * len(requests)) - 1]
    assert sizes.input_quantile(0.95) == pytest.approx(largest, rel=0.19), "within the width of a bin"


def test_sizes_forget_and_never_overflow() -> None:
    sizes = RequestSizes(1.0)
    for second in range(5000):
        sizes.add(float(second), one(100 if second < 4900 else 400, 10))
    (large,) = [c for c in sizes.classes() if c.input_tokens > 200]
    assert large.share == pytest.approx(1.0)
    assert sizes.weight(4999.0) == pytest.approx(2.0, rel=0.01)


def test_a_restart_knows_the_demand_and_leaves_out_the_time_it_was_down() -> None:
    one, draw = meter(), Random(3)
    samples: list[DemandSample] = []
    for minute in range(90):
        arrive(one, draw, minute * 60.0, minute * 60.0 + 60.0, 3.0)
        for _ in range(150):
            one.finished(minute * 60.0 + 59.0, draw.randint(50, 150), draw.randint(5, 15))
        samples.append(one.sample((minute + 1) * 60.0, at_s=1e9 + (minute + 1) * 60.0))
    again = DemandMeter(HALF_S, 0.95, 77.0)  # on another clock
    again.restore(samples, 77.0)
    before, after = one.measured(5400.0), again.measured(77.0)
    assert after.age_s == pytest.approx(before.age_s)
    assert after.requests_per_s == pytest.approx(before.requests_per_s, rel=0.05)
    assert after.sizes_seen == pytest.approx(before.sizes_seen, rel=0.05)
    assert after.input_tokens == pytest.approx(before.input_tokens, rel=0.02)
    assert after.input_tokens_quantile == pytest.approx(before.input_tokens_quantile, rel=0.19)


def test_samples_are_small_however_many_requests_they_hold() -> None:
    draw = Random(4)
    counts = binned(one(draw.randint(50, 150), draw.randint(5, 15)) for _ in range(20_000))
    assert len(counts) < 60
    assert sum(count.requests for count in counts) == 20_000


def test_a_jump_is_said_once_until_it_is_calm_again() -> None:
    one, draw, jump = meter(), Random(5), Jump()
    said = []
    for minute in range(240):
        rate = 6.0 if 60 <= minute < 120 or minute >= 180 else 2.0
        arrive(one, draw, minute * 60.0, minute * 60.0 + 60.0, rate)
        if jump.look(one.measured((minute + 1) * 60.0), CONFIGURED):
            said.append(minute)
    assert len(said) == 2
    assert said[0] in (60, 61)
    assert said[1] in (180, 181)


def test_chance_is_no_jump() -> None:
    """At one request in twenty seconds bursts of three are common."""
    said = 0
    for seed in range(20):
        one, draw, jump = meter(), Random(seed), Jump()
        rare = Demand(
            requests_per_s=0.05, classes=CONFIGURED.classes, input_tokens_quantile=CONFIGURED.input_tokens
        )
        for minute in range(600):
            arrive(one, draw, minute * 60.0, minute * 60.0 + 60.0, 0.05)
            said += jump.look(one.measured((minute + 1) * 60.0), rare)
    assert said <= 2, "in 200 hours"


def test_lengths_that_drift_are_said_once_and_few_requests_say_nothing() -> None:
    one, drift = meter(), Drift()
    said = []
    for i in range(3000):
        tokens = 100 if i < 1000 else 180
        one.finished(float(i), tokens, 20)
        if drift.look(one.measured(float(i)), CONFIGURED):
            said.append(i)
    assert len(said) == 1
    assert 1000 < said[0] < 1600
    few = meter()
    for i in range(50):
        few.finished(float(i), 1000, 20)
    assert not Drift().look(few.measured(50.0), CONFIGURED)
