"""What goes into a step of a later stage: whatever has arrived, in order, within the step's limits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Arrived(Generic[P]):
    """Positions `[start, start + n)` of one attempt of a sequence, with whatever carries them."""

    request: str
    attempt: int
    start: int
    n: int
    payload: P


class ArrivalBatching(Generic[P]):
    """Chunks that earlier nodes have sent, waiting for a step.

    A chunk waits while its sequence's reservation does not cover it (the extension is on its way), and
    a second chunk of a sequence waits for the step after: chunks of one sequence stay in order.
    """

    def __init__(self, *, step_tokens: int, step_requests: int) -> None:
        if step_tokens < 1 or step_requests < 1:
            raise ValueError(f"a step needs room, not {step_tokens} tokens of {step_requests} requests")
        self._step_tokens = step_tokens
        self._step_requests = step_requests
        self._open: dict[str, tuple[int, int]] = {}
        self._queue: deque[Arrived[P]] = deque()
        self._held: dict[str, deque[Arrived[P]]] = {}

    @property
    def ready(self) -> bool:
        return bool(self._queue)

    def open(self, request: str, attempt: int, reserve: int) -> None:
        self._open[request] = (attempt, reserve)

    def extend(self, request: str, reserve: int) -> None:
        attempt, _ = self._open[request]
        self._open[request] = (attempt, reserve)
        held = self._held.pop(request, deque())
        while held and held[0].start + held[0].n <= reserve:
            self._queue.append(held.popleft())
        if held:
            self._held[request] = held

    def close(self, request: str) -> list[Arrived[P]]:
        """Forget a sequence; what had arrived of it and did not run is returned."""
        self._open.pop(request, None)
        dropped = list(self._held.pop(request, ()))
        if any(chunk.request == request for chunk in self._queue):
            dropped += [chunk for chunk in self._queue if chunk.request == request]
            self._queue = deque(chunk for chunk in self._queue if chunk.request != request)
        return dropped

    def arrive(self, chunk: Arrived[P]) -> bool:
        """Take a chunk; False where its attempt is not open here (it is stale) and it was dropped."""
        attempt, reserve = self._open.get(chunk.request, (-1, 0))
        if attempt != chunk.attempt:
            return False
        if chunk.request in self._held or chunk.start + chunk.n > reserve:
            self._held.setdefault(chunk.request, deque()).append(chunk)
        else:
            self._queue.append(chunk)
        return True

    def next(self) -> list[Arrived[P]]:
        """The next step's chunks. One larger than the step's limit runs alone."""
        taken: list[Arrived[P]] = []
        seen: set[str] = set()
        passed: list[Arrived[P]] = []
        room = self._step_tokens
        while self._queue and len(taken) < self._step_requests:
            chunk = self._queue[0]
            if chunk.request in seen:
                passed.append(self._queue.popleft())
                continue
            if taken and chunk.n > room:
                break
            taken.append(self._queue.popleft())
            seen.add(chunk.request)
            room -= chunk.n
        self._queue.extendleft(reversed(passed))
        return taken
