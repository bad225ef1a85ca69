"""Sizes of requests for `benchmarks.slo`: seeded, with the mean and percentile that the plan is told."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

DRAWN = 4096
SPREAD = 0.6
"""Standard deviation of a prompt's logarithm."""


class Sizes:
    """Lognormal prompts and geometric outputs, at most `limit` tokens together; request i has size i."""

    def __init__(self, prompt_mean: float, output_mean: float, seed: int, *, limit: int) -> None:
        draw = random.Random(seed)
        middle = math.log(prompt_mean) - SPREAD**2 / 2
        self._sizes = []
        for _ in range(DRAWN):
            prompt = max(40, round(draw.lognormvariate(middle, SPREAD)))
            output = 2 + int(draw.expovariate(1 / max(0.5, output_mean - 2)))
            self._sizes.append((min(prompt, limit // 2), min(output, limit // 2)))
        prompts = sorted(float(prompt) for prompt, _ in self._sizes)
        self.prompt_mean = sum(prompts) / DRAWN
        self.prompt_quantile = percentile(prompts, 0.95)
        self.output_mean = sum(output for _, output in self._sizes) / DRAWN

    def __getitem__(self, number: int) -> tuple[int, int]:
        """(prompt, output) tokens."""
        return self._sizes[number % DRAWN]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of ascending values: the least that is not below `share` of them."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
