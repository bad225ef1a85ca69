from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coral.core.operate.shares import InflightShares


def test_one_model_has_the_whole_limit() -> None:
    assert InflightShares(10, {"a": 0.1}).most("a", {}) == 10


def test_a_flood_leaves_the_guarantees_of_the_others() -> None:
    shares = InflightShares(100, {"a": 3.0, "b": 1.0})
    assert shares.most("b", {"a": 0, "b": 0}) == 63, "all but half of a's share of 75"
    assert shares.most("a", {"a": 0, "b": 63}) == 37


@given(
    st.integers(4, 40),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 10.0), min_size=1),
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200),
)
def test_nobody_is_refused_below_its_guarantee_and_the_limit_holds(
    limit: int, priorities: dict[str, float], events: list[tuple[str, bool]]
) -> None:
    shares = InflightShares(limit, priorities)
    in_flight = dict.fromkeys(priorities, 0)
    for model, comes in events:
        if model not in in_flight:
            continue
        if not comes:
            in_flight[model] = max(0, in_flight[model] - 1)
        elif in_flight[model] < shares.most(model, in_flight):
            in_flight[model] += 1
        else:
            assert in_flight[model] >= shares.guaranteed[model]
        assert sum(in_flight.values()) <= limit
