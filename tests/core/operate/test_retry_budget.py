from __future__ import annotations

from coral.core.operate.retry_budget import RetryBudget


def test_a_burst_is_had_at_once_and_then_as_fast_as_it_is_earned() -> None:
    budget = RetryBudget(share=0.0, per_s=2.0, burst=3.0)
    assert [budget.spend(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert [budget.spend(1.0) for _ in range(3)] == [True, True, False]
    assert budget.left(1000.0) == 3.0, "no more than a burst is saved up"


def test_requests_pay_for_retries() -> None:
    budget = RetryBudget(share=0.2, per_s=1e-9, burst=2.0)
    assert [budget.spend(0.0) for _ in range(3)] == [True, True, False]
    for _ in range(6):
        budget.earn()
    assert [budget.spend(0.0) for _ in range(2)] == [True, False]


def test_a_retry_that_came_to_nothing_is_given_back() -> None:
    budget = RetryBudget(share=0.0, per_s=1e-9, burst=1.0)
    assert budget.spend(0.0)
    budget.give_back()
    budget.give_back()
    assert [budget.spend(0.0), budget.spend(0.0)] == [True, False]


def test_time_that_goes_back_changes_nothing() -> None:
    budget = RetryBudget(share=0.0, per_s=1.0, burst=5.0)
    for _ in range(5):
        budget.spend(10.0)
    assert budget.left(9.0) == 0.0
    assert budget.left(11.0) == 1.0
