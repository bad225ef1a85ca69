"""The contract of routing policies."""

from __future__ import annotations

import random

import pytest

from coral.hookspecs.router import Candidate, Router, RouteRequest
from coral.testing.contract import Contract


def request(number: int = 0, prompt: int = 8) -> RouteRequest:
    return RouteRequest(id=f"r{number}", model="m", prompt_ids=tuple(range(prompt)), max_tokens=16)


def candidates(*weights: float) -> list[Candidate]:
    return [Candidate(id=f"i{n}", weight=weight) for n, weight in enumerate(weights)]


class RouterContract(Contract):
    """Needs the fixture `router`: a new one for every test."""

    @pytest.fixture
    def router(self) -> Router:
        self._undefined("router")

    def test_picks_one_of_those_offered(self, router: Router) -> None:
        among = candidates(1.0, 2.0, 3.0)
        for n in range(50):
            chosen = router.pick(request(n), among, float(n))
            assert chosen in among
            router.done(request(n), chosen, n + 0.5)

    def test_a_single_candidate_is_picked(self, router: Router) -> None:
        (only,) = candidates(1.0)
        assert router.pick(request(), [only], 0.0) == only

    def test_weights_of_zero_are_no_error(self, router: Router) -> None:
        among = candidates(0.0, 0.0)
        assert router.pick(request(), among, 0.0) in among

    def test_the_answer_carries_what_is_known_now(self, router: Router) -> None:
        for running in range(4):
            among = [
                Candidate(id="a", weight=1.0, running=running),
                Candidate(id="b", weight=1.0, running=running),
            ]
            assert router.pick(request(running), among, float(running)) in among

    def test_every_candidate_is_used_under_load(self, router: Router) -> None:
        """Requests that are unlike each other, all running at once, do not all go to one instance."""
        draw = random.Random(1)
        counts = {"i0": 0, "i1": 0, "i2": 0}
        for n in range(300):
            ids = tuple(draw.randrange(1000) for _ in range(32))
            one = RouteRequest(id=f"r{n}", model="m", prompt_ids=ids, max_tokens=16)
            among = [Candidate(id=name, weight=1.0, running=count) for name, count in counts.items()]
            counts[router.pick(one, among, n * 0.01).id] += 1
        assert min(counts.values()) > 0, counts

    def test_candidates_come_and_go(self, router: Router) -> None:
        draw = random.Random(2)
        pool = candidates(*[draw.uniform(0.1, 5.0) for _ in range(8)])
        open_picks: list[tuple[RouteRequest, Candidate]] = []
        for n in range(500):
            among = draw.sample(pool, draw.randint(1, len(pool)))
            one = request(n, prompt=draw.randint(1, 40))
            chosen = router.pick(one, among, float(n))
            assert chosen in among
            open_picks.append((one, chosen))
            if draw.random() < 0.6:
                router.done(*open_picks.pop(draw.randrange(len(open_picks))), float(n))
        for one, chosen in open_picks:
            router.done(one, chosen, 1000.0)

    def test_the_offer_is_left_as_it_is(self, router: Router) -> None:
        among = candidates(3.0, 1.0)
        router.pick(request(), among, 0.0)
        assert among == candidates(3.0, 1.0)
