"""The contract of workloads."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from coral.hookspecs.workload import Arrival, Workload
from coral.testing.contract import Contract

FIRST = 500


class WorkloadContract(Contract):
    """Needs the fixture `workload`. Only the first 500 requests are drawn."""

    @pytest.fixture
    def workload(self) -> Workload:
        self._undefined("workload")

    def first(self, workload: Workload, seed: int) -> list[Arrival]:
        return list(islice(workload.requests(seed), FIRST))

    def test_there_are_requests(self, workload: Workload) -> None:
        assert self.first(workload, 0)

    def test_arrivals_are_in_order_of_time(self, workload: Workload) -> None:
        times = [arrival.at_s for arrival in self.first(workload, 0)]
        assert times == sorted(times)
        assert all(math.isfinite(t) and t >= 0 for t in times)

    def test_requests_are_possible(self, workload: Workload) -> None:
        for arrival in self.first(workload, 0):
            assert arrival.model
            assert arrival.input_tokens >= 1
            assert arrival.output_tokens >= 1

    def test_the_same_seed_gives_the_same_requests(self, workload: Workload) -> None:
        assert self.first(workload, 7) == self.first(workload, 7)

    def test_streams_are_independent(self, workload: Workload) -> None:
        a, b = workload.requests(3), workload.requests(3)
        turns = [(next(a, None), next(b, None)) for _ in range(20)]
        assert all(one == other for one, other in turns)
