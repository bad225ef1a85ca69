"""The contract of executors."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from coral.testing.contract import Contract

TIMEOUT_S = 60.0


class ExecutorContract(Contract):
    """Needs the fixture `executor`: a new one for every test. The suite shuts it down."""

    @pytest.fixture
    def executor(self) -> Executor:
        self._undefined("executor")

    @pytest.fixture
    def running(self, executor: Executor) -> Iterator[Executor]:
        yield executor
        executor.shutdown(wait=True, cancel_futures=True)

    def test_runs_a_function(self, running: Executor) -> None:
        assert running.submit(math.factorial, 20).result(TIMEOUT_S) == math.factorial(20)

    def test_results_keep_their_order(self, running: Executor) -> None:
        numbers = list(range(40))
        assert list(running.map(math.factorial, numbers, timeout=TIMEOUT_S)) == [
            math.factorial(n) for n in numbers
        ]

    def test_an_exception_reaches_whoever_asks(self, running: Executor) -> None:
        future = running.submit(operator.truediv, 1, 0)
        with pytest.raises(ZeroDivisionError):
            future.result(TIMEOUT_S)
        assert running.submit(operator.add, 1, 2).result(TIMEOUT_S) == 3

    def test_nothing_is_taken_after_shutdown(self, running: Executor) -> None:
        running.shutdown(wait=True)
        with pytest.raises(RuntimeError):
            running.submit(math.factorial, 3)
