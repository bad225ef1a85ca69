"""Who may wait for room, in which order, and who is refused at once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from coral.core.operate.sequence import LiveSequence
from coral.types.request import GenerateRequest
from coral.types.stage import KvCapacity


def max_request_tokens(
    stages: Sequence[Sequence[tuple[str, float]]], capacities: Mapping[str, KvCapacity], max_model_len: int
) -> int:
    """The longest request, prompt and output together, that some route can hold."""
    by_stage = (
        max(capacities[node].blocks * capacities[node].block_size for node, _ in stage) for stage in stages
    )
    return min([max_model_len, *by_stage])


def kv_tokens(stages: Sequence[Sequence[tuple[str, float]]], capacities: Mapping[str, KvCapacity]) -> int:
    """Tokens of KV an instance can hold: the least over its stages of the sum over their nodes."""
    return min(
        sum(capacities[node].blocks * capacities[node].block_size for node, _ in stage) for stage in stages
    )


def refusal(request: GenerateRequest, limit: int) -> str | None:
    """Why a request can never be served here, or None. `limit`: prompt and output tokens together."""
    if not request.prompt_ids:
        return "the prompt is empty"
    if request.sampling.max_tokens <= len(request.generated):
        return f"max_tokens is {request.sampling.max_tokens}: nothing is left to generate"
    total = len(request.prompt_ids) + request.sampling.max_tokens
    if total > limit:
        return (
            f"this model takes at most {limit} tokens, prompt and output together; the request asks for "
            f"{total} ({len(request.prompt_ids)} in the prompt, {request.sampling.max_tokens} to generate)"
        )
    return None


class WaitingQueue:
    """First come, first served within a priority; preempted sequences come before all others.

    Nobody overtakes the head: a long request that waits for room is not starved by short ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[bool, float, int, LiveSequence]] = []
        self._gone: set[int] = set()

    @property
    def full(self) -> bool:
        return len(self) >= self._limit

    def push(self, sequence: LiveSequence, *, preempted: bool = False) -> None:
        """Preempted sequences always find a place: they have been admitted before."""
        entry = (not preempted, -sequence.request.priority, sequence.arrival, sequence)
        heapq.heappush(self._heap, entry)

    def head(self) -> LiveSequence | None:
        while self._heap and self._heap[0][2] in self._gone:
            self._gone.discard(heapq.heappop(self._heap)[2])
        return self._heap[0][3] if self._heap else None

    def pop(self) -> LiveSequence:
        head = self.head()
        if head is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        return head

    def remove(self, sequence: LiveSequence) -> None:
        """Take a waiting sequence out, wherever it stands."""
        self._gone.add(sequence.arrival)
        if len(self._gone) > 64 and 2 * len(self._gone) > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2] not in self._gone]
            heapq.heapify(self._heap)
            self._gone.clear()

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def __iter__(self) -> Iterator[LiveSequence]:
        return (entry[3] for entry in self._heap if entry[2] not in self._gone)
