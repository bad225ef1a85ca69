"""What goes into a step of a later stage: decode rows first, then chunks of prompts, in turn."""

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

    Order is kept within a sequence, not among them: rows of one token go first, in turn; longer chunks
    share what is left, in turn as well, however many chunks of one long prompt have come before. While
    such chunks wait, one place of the step is kept for them, and one that did not fit beside the others
    is the first of the next step: neither decode rows nor a long prompt delay anybody by more than a step.

    A chunk waits while its sequence's reservation does not cover it (the extension is on its way), and
    a second chunk of a sequence waits for a step after.
    """

    def __init__(self, *, step_tokens: int, step_requests: int) -> None:
        if step_tokens < 1 or step_requests < 1:
            raise ValueError(f"a step needs room, not {step_tokens} tokens of {step_requests} requests")
        self._step_tokens = step_tokens
        self._step_requests = step_requests
        self._open: dict[str, tuple[int, int]] = {}
        self._chunks: dict[str, deque[Arrived[P]]] = {}
        """All that has arrived and has not run, by sequence."""
        self._rows: dict[str, None] = {}
        self._prompts: dict[str, None] = {}
        """Whose turn it is: sequences whose next chunk may run."""
        self._owed = ""
        """The sequence whose chunk did not fit the last step."""

    @property
    def ready(self) -> bool:
        return bool(self._rows or self._prompts)

    def open(self, request: str, attempt: int, reserve: int) -> None:
        self._open[request] = (attempt, reserve)

    def extend(self, request: str, reserve: int) -> None:
        attempt, _ = self._open[request]
        self._open[request] = (attempt, reserve)
        self._queue(request)

    def close(self, request: str) -> list[Arrived[P]]:
        """Forget a sequence; what had arrived of it and did not run is returned."""
        self._open.pop(request, None)
        self._rows.pop(request, None)
        self._prompts.pop(request, None)
        return list(self._chunks.pop(request, ()))

    def arrive(self, chunk: Arrived[P]) -> bool:
        """Take a chunk; False where its attempt is not open here (it is stale) and it was dropped."""
        attempt, _ = self._open.get(chunk.request, (-1, 0))
        if attempt != chunk.attempt:
            return False
        self._chunks.setdefault(chunk.request, deque()).append(chunk)
        self._queue(chunk.request)
        return True

    def next(self) -> list[Arrived[P]]:
        """The next step's chunks. One larger than the step's limit runs alone."""
        taken: list[Arrived[P]] = []
        room, places = self._step_tokens, min(self._step_requests, self._step_tokens)
        honoured = self._owed in self._prompts
        if honoured:
            room -= self._take(self._owed, taken)
        kept = 1 if self._prompts and not taken and places > 1 else 0
        rows = list(self._rows)[: max(0, min(places - kept - len(taken), room))]
        for request in rows:
            room -= self._take(request, taken)
        passed = ""
        for request in list(self._prompts)[: self._step_requests - len(taken)]:
            if not taken or self._chunks[request][0].n <= room:
                room -= self._take(request, taken)
            else:
                passed = passed or request
        if len(taken) == len(rows):  # there was no place for the first of them
            passed = next(iter(self._prompts), "")
        self._owed = passed if rows and not honoured else ""
        for chunk in taken:
            self._queue(chunk.request)
        return taken

    def _take(self, request: str, taken: list[Arrived[P]]) -> int:
        """The next chunk of a sequence, which has to wait for its next turn; how many tokens it has."""
        chunk = self._chunks[request].popleft()
        self._rows.pop(request, None)
        self._prompts.pop(request, None)
        taken.append(chunk)
        return chunk.n

    def _queue(self, request: str) -> None:
        """Put a sequence where it belongs; one that is queued keeps its turn."""
        chunks = self._chunks.get(request)
        if not chunks:
            self._chunks.pop(request, None)
            return
        chunk = chunks[0]
        if chunk.start + chunk.n <= self._open[request][1]:
            (self._rows if chunk.n == 1 else self._prompts).setdefault(request)
