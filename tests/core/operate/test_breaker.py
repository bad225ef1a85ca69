from __future__ import annotations

import pytest

from coral.core.operate.breaker import (
    FIRST_PAUSE_S,
    LEAST_FAILURES,
    LONGEST_PAUSE_S,
    STABLE_S,
    WINDOW_S,
    Breaker,
)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(LEAST_FAILURES):
        breaker.failed(now)
    return breaker


def test_it_opens_after_repeated_failures_only() -> None:
    breaker = Breaker()
    assert [breaker.failed(0.0) for _ in range(LEAST_FAILURES)] == [False] * (LEAST_FAILURES - 1) + [True]
    assert not breaker.allows(0.0)
    assert not breaker.closed


def test_few_failures_among_many_successes_open_nothing() -> None:
    breaker = Breaker()
    for i in range(200):
        breaker.succeeded(float(i) / 10)
        breaker.succeeded(float(i) / 10)
        breaker.failed(float(i) / 10)
    assert breaker.closed


def test_failures_that_lie_far_apart_open_nothing() -> None:
    breaker = Breaker()
    for i in range(50):
        breaker.failed(i * WINDOW_S)
    assert breaker.closed


def test_after_the_pause_one_request_is_let_through_and_decides() -> None:
    breaker = opened()
    now = FIRST_PAUSE_S
    assert breaker.allows(now)
    breaker.began(now)
    assert not breaker.allows(now), "one at a time"
    breaker.succeeded(now + 0.1)
    assert breaker.closed
    assert breaker.allows(now + 0.1)


def test_the_pause_doubles_up_to_a_longest() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(9):
        pauses.append(breaker.opens_in_s(now))
        now += breaker.opens_in_s(now)
        assert breaker.allows(now)
        breaker.began(now)
        assert breaker.failed(now)
    assert pauses == [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**i) for i in range(9)]


@pytest.mark.parametrize(("stable_s", "pause_s"), [(0.1, 2 * FIRST_PAUSE_S), (STABLE_S + 1, FIRST_PAUSE_S)])
def test_whoever_flaps_waits_longer_unless_it_has_been_well_for_long(stable_s: float, pause_s: float) -> None:
    breaker = opened()
    breaker.began(1.0)
    breaker.succeeded(1.0)
    now = 1.0 + stable_s
    breaker.succeeded(now)
    for _ in range(LEAST_FAILURES):
        breaker.failed(now)
    assert breaker.opens_in_s(now) == pause_s


def test_outcomes_of_what_was_sent_before_it_opened_decide_nothing() -> None:
    breaker = opened()
    breaker.succeeded(0.5)
    assert not breaker.closed
    assert not breaker.failed(0.6)
    assert breaker.opens_in_s(0.6) == FIRST_PAUSE_S - 0.6


def test_a_probe_of_which_nothing_is_heard_or_that_is_withdrawn_is_followed_by_another() -> None:
    breaker = opened()
    breaker.began(1.0)
    assert not breaker.allows(1.5)
    assert breaker.allows(1.0 + FIRST_PAUSE_S)
    breaker.began(2.0)
    breaker.withdrawn()
    assert breaker.allows(2.1)
