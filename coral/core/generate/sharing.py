"""Searches whose pieces are solved by an executor: all of them at once, so that none waits for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

from coral.core.generate.search import Search, Sizes, Solved, solve
from coral.core.generate.templates import Found

Tell = Callable[[int, int], None]
"""`tell(number, more)`: of task `number`, `more` combinations are done."""


def shared(tasks: Sequence[Search], executor: Executor, tell: Tell) -> Iterator[tuple[int, Found]]:
    """(number of the task, what was found), in the order in which they end.

    The pieces of a size of a task run side by side; its next size follows when all are there. Raises
    BrokenExecutor where a worker dies. An iterator that is not run to its end leaves pieces in the
    executor, whose end calls them off.
    """
    owner: dict[Future[Solved], _Crowd] = {}
    for number, task in enumerate(tasks):
        one = _Crowd(number, Sizes(task))
        owner |= dict.fromkeys(one.go_on(executor), one)
        if not one.running:
            yield number, one.sizes.found()
    while owner:
        done, _ = wait(owner, return_when=FIRST_COMPLETED)
        for future in done:
            one = owner.pop(future)
            tell(one.number, len(future.result().throughput))
            one.running -= 1
            if one.running == 0:
                owner |= dict.fromkeys(one.go_on(executor), one)
                if not one.running:
                    yield one.number, one.sizes.found()


class _Crowd:
    """One search and the pieces of its size; `running` of them are not yet seen to have ended."""

    def __init__(self, number: int, sizes: Sizes) -> None:
        self.number = number
        self.sizes = sizes
        self.running = 0
        self._pieces: list[Future[Solved]] = []

    def go_on(self, executor: Executor) -> list[Future[Solved]]:
        """Take the answers of this size and start the pieces of the next; none where all sizes are done."""
        if self._pieces:
            self.sizes.take([piece.result() for piece in self._pieces])
        self._pieces = [executor.submit(solve, piece) for piece in self.sizes.pieces()]
        self.running = len(self._pieces)
        return self._pieces
