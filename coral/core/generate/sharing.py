"""Searches whose pieces are solved by an executor: all of them at once, so that none waits for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

from coral.core.generate.search import Piece, Search, Sizes, Solved, solve
from coral.core.generate.templates import Found

Tell = Callable[[int, int], None]
"""`tell(number, more)`: of task `number`, `more` combinations are done."""


def shared(tasks: Sequence[Search], executor: Executor, tell: Tell) -> Iterator[tuple[int, Found]]:
    """(number of the task, what was found), in the order in which they end.

    The pieces of a size of a task run side by side; its next size follows when all are there. Raises
    BrokenExecutor where a worker dies. An iterator that is not run to its end leaves pieces in the
    executor, whose end calls them off.
    """
    crowd = [_Crowd(number, Sizes(task)) for number, task in enumerate(tasks)]
    owner: dict[Future[Solved], _Crowd] = {}
    ended: list[_Crowd] = []
    for one in crowd:
        owner |= dict.fromkeys(one.go_on(executor), one)
        if not one.waiting:
            ended.append(one)
    while ended or owner:
        for one in ended:
            yield one.number, one.sizes.found()
        ended = []
        if not owner:
            return
        done, _ = wait(owner, return_when=FIRST_COMPLETED)
        for future in done:
            one = owner.pop(future)
            tell(one.number, len(future.result().throughput))
            if all(other.done() for other in one.waiting):
                one.sizes.take([other.result() for other in one.waiting])
                owner |= dict.fromkeys(one.go_on(executor), one)
                if not one.waiting:
                    ended.append(one)


class _Crowd:
    """One search and the pieces of it that run."""

    def __init__(self, number: int, sizes: Sizes) -> None:
        self.number = number
        self.sizes = sizes
        self.waiting: list[Future[Solved]] = []

    def go_on(self, executor: Executor) -> list[Future[Solved]]:
        """Start the pieces of the next size; none where all sizes are done."""
        pieces: list[Piece] = self.sizes.pieces()
        self.waiting = [executor.submit(solve, piece) for piece in pieces]
        return self.waiting
