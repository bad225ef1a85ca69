"""Turns in proportion to weights, within one pick at all times."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from coral.hookspecs.router import WeightedRoundRobin

Weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


@given(weights=Weights)
@example(weights=[30.0, 30.0, 1.5, 1.125, 3.75])  # where the smooth rule is 1.01 off after 31 picks
def test_each_count_is_within_tijdemans_bound_of_its_share(weights: list[float]) -> None:
    keys = list(enumerate(weights))
    total, slack = sum(weights), 1 / (2 * len(weights) - 2) if len(weights) > 1 else 1.0
    turns: WeightedRoundRobin[int] = WeightedRoundRobin()
    picked: Counter[int] = Counter()
    for number in range(1, 100):
        picked[turns.pick(keys)] += 1
        for key, weight in keys:
            assert abs(picked[key] - number * weight / total) <= 1 - slack + 1e-9


@given(rounds=st.lists(Weights, min_size=1, max_size=30))
def test_keys_may_come_and_go_and_weights_change(rounds: list[list[float]]) -> None:
    turns: WeightedRoundRobin[int] = WeightedRoundRobin()
    for weights in rounds:
        assert turns.pick(list(enumerate(weights))) in range(len(weights))


def test_a_key_of_weight_zero_is_not_picked_beside_others() -> None:
    turns: WeightedRoundRobin[str] = WeightedRoundRobin()
    assert {turns.pick([("none", 0.0), ("all", 1.0)]) for _ in range(20)} == {"all"}


def test_weights_that_are_all_zero_count_as_equal() -> None:
    turns: WeightedRoundRobin[str] = WeightedRoundRobin()
    assert Counter(turns.pick([("a", 0.0), ("b", 0.0)]) for _ in range(20)) == {"a": 10, "b": 10}
