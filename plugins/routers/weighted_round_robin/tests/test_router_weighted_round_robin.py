from __future__ import annotations

from collections import Counter

import pytest
from coral_router_weighted_round_robin.options import RoundRobinOptions
from coral_router_weighted_round_robin.policy import build
from hypothesis import given
from hypothesis import strategies as st

from coral.hookspecs.router import Candidate, Router, RouteRequest
from coral.testing.router import RouterContract

REQUEST = RouteRequest(id="r", model="m", prompt_ids=(1,), max_tokens=1)


class TestContract(RouterContract):
    @pytest.fixture
    def router(self) -> Router:
        return build(RoundRobinOptions())


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=5), st.integers(1, 120))
def test_after_any_number_of_picks_each_has_its_share_within_one(weights: list[float], picks: int) -> None:
    router = build(RoundRobinOptions())
    among = [Candidate(id=str(i), weight=weight) for i, weight in enumerate(weights)]
    counts: Counter[str] = Counter()
    for _ in range(picks):
        chosen = router.pick(REQUEST, among, 0.0)
        router.done(REQUEST, chosen, 0.0)
        counts[chosen.id] += 1
    for candidate in among:
        share = picks * candidate.weight / sum(weights)
        assert abs(counts[candidate.id] - share) <= 1 + 1e-9


def test_instances_may_come_and_go() -> None:
    router = build(RoundRobinOptions())
    a, b = Candidate(id="a", weight=1.0), Candidate(id="b", weight=1.0)
    assert {router.pick(REQUEST, [a], 0.0).id for _ in range(5)} == {"a"}
    picks = Counter(router.pick(REQUEST, [a, b], 0.0).id for _ in range(10))
    assert picks == {"a": 5, "b": 5}
    assert router.pick(REQUEST, [b], 0.0) is b
