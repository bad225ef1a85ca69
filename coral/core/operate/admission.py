"""Who may wait for room, in which order, and who is refused at once."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from coral.core.operate.sequence import LiveSequence
from coral.types.request import GenerateRequest
from coral.types.stage import KvCapacity

LOOK_AHEAD = 64
"""Sequences of the queue that are tried for the room there is."""


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

    Who waits for room may be overtaken by later ones of its priority that fit, but only as long as these
    reserve no more in all than it needs itself: short ones do not stand behind a long one for which there
    is no room yet, and the long one starts, at the latest, when as much room has come free for it a second
    time. Nobody overtakes a preempted sequence.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: list[tuple[bool, float, int]] = []
        self._sequences: dict[tuple[bool, float, int], LiveSequence] = {}

    @property
    def full(self) -> bool:
        return len(self) >= self._limit

    def push(self, sequence: LiveSequence, *, preempted: bool = False) -> None:
        """Preempted sequences always find a place: they have been admitted before."""
        sequence.overtaken = 0
        sequence.preempted = preempted
        bisect.insort(self._order, _place(sequence))
        self._sequences[_place(sequence)] = sequence

    def admissible(self, need: Callable[[LiveSequence], int]) -> Iterator[LiveSequence]:
        """Those that may be admitted now if there is room, in order. `need`: tokens one reserves."""
        allowed: float = inf
        priority = None
        for place in self._order[:LOOK_AHEAD]:
            sequence = self._sequences[place]
            if priority not in (None, sequence.request.priority):
                return
            if need(sequence) <= allowed:
                yield sequence
            allowed = min(allowed, need(sequence) - sequence.overtaken)
            if sequence.preempted or allowed <= 0:
                return
            priority = sequence.request.priority

    def admit(self, sequence: LiveSequence, reserved: int) -> None:
        """It goes, past all that stand before it."""
        place = _place(sequence)
        for before in self._order[: bisect.bisect_left(self._order, place)]:
            self._sequences[before].overtaken += reserved
        self.remove(sequence)

    def remove(self, sequence: LiveSequence) -> None:
        """Take a waiting sequence out, wherever it stands."""
        place = _place(sequence)
        del self._sequences[place]
        del self._order[bisect.bisect_left(self._order, place)]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[LiveSequence]:
        return (self._sequences[place] for place in self._order)


def _place(sequence: LiveSequence) -> tuple[bool, float, int]:
    return (not sequence.preempted, *sequence.rank)
