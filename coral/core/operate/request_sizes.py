"""Sizes of recent requests: a histogram whose counts lose half their weight every half-life.

Bins are quarters of an octave of prompt tokens and halves of one of output tokens; a bin keeps the sums of
its tokens, so means are exact however bins are merged into request classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from coral.types.model import RequestClass

CLASSES = 12
"""Request classes a planner is given, at most."""
REBASE_HALVES = 40.0


class SizeCount(Struct, frozen=True, kw_only=True, array_like=True):
    """Requests of one bin with their tokens in sum."""

    requests: float
    input_tokens: float
    output_tokens: float

    def plus(self, other: SizeCount, weight: float = 1.0) -> SizeCount:
        return SizeCount(
            requests=self.requests + weight * other.requests,
            input_tokens=self.input_tokens + weight * other.input_tokens,
            output_tokens=self.output_tokens + weight * other.output_tokens,
        )

    @property
    def bin(self) -> tuple[int, int]:
        """Of its mean size."""
        mean_in, mean_out = self.input_tokens / self.requests, self.output_tokens / self.requests
        return math.floor(4 * math.log2(max(1.0, mean_in))), math.floor(2 * math.log2(max(1.0, mean_out)))


NONE = SizeCount(requests=0.0, input_tokens=0.0, output_tokens=0.0)


def one(input_tokens: int, output_tokens: int) -> SizeCount:
    return SizeCount(requests=1.0, input_tokens=float(input_tokens), output_tokens=float(output_tokens))


def binned(counts: Iterable[SizeCount]) -> tuple[SizeCount, ...]:
    """Those of one bin together, in the order of the bins."""
    found: dict[tuple[int, int], SizeCount] = {}
    for count in counts:
        found[count.bin] = found.get(count.bin, NONE).plus(count)
    return tuple(found[key] for key in sorted(found))


class RequestSizes:
    """Times in seconds of one clock; they may not go back."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._origin = 0.0
        self._bins: dict[tuple[int, int], SizeCount] = {}

    def add(self, now: float, count: SizeCount) -> None:
        if not self._bins:
            self._origin = now
        halves = (now - self._origin) / self._half_life_s
        if halves > REBASE_HALVES:
            self._bins = {key: NONE.plus(old, math.exp2(-halves)) for key, old in self._bins.items()}
            self._origin, halves = now, 0.0
        self._bins[count.bin] = self._bins.get(count.bin, NONE).plus(count, math.exp2(halves))

    def weight(self, now: float) -> float:
        """Requests seen, the recent ones counting most."""
        halves = (now - self._origin) / self._half_life_s
        return sum(one.requests for one in self._bins.values()) * math.exp2(-halves)

    def classes(self, most: int = CLASSES) -> tuple[RequestClass, ...]:
        """Shares sum to 1. The rarest bins are merged with what is nearest. Empty before any request."""
        counts = [self._bins[key] for key in sorted(self._bins)]
        while len(counts) > most:
            rare = min(range(len(counts)), key=lambda i: counts[i].requests)
            taken = counts.pop(rare)
            near = min(range(len(counts)), key=lambda i: _distance(counts[i], taken))
            counts[near] = counts[near].plus(taken)
        total = sum(count.requests for count in counts)
        return tuple(
            RequestClass(
                input_tokens=max(1.0, count.input_tokens / count.requests),
                output_tokens=max(1.0, count.output_tokens / count.requests),
                share=count.requests / total,
            )
            for count in counts
            if count.requests > 0
        )

    def input_quantile(self, share: float) -> float:
        """Prompt tokens that so large a share of the requests does not exceed, by the means of the bins; 0
        before any request."""
        counts = sorted(self._bins.values(), key=lambda one: one.input_tokens / one.requests)
        total = sum(one.requests for one in counts)
        below = 0.0
        for count in counts:
            below += count.requests
            if below >= share * total - 1e-9:
                return count.input_tokens / count.requests
        return 0.0


def _distance(a: SizeCount, b: SizeCount) -> float:
    """In octaves."""
    (ain, aout), (bin_, bout) = a.bin, b.bin
    return abs(ain - bin_) / 4 + abs(aout - bout) / 2
