"""What a model's demand means for steps and KV: means over the requests that are in flight."""

from __future__ import annotations

import math
from collections.abc import Callable

from coral.types.model import ModelSpec, Phase, RequestClass
from coral.types.reservation import ReservationRule, blocks


class Workload:
    """Figures of a model's requests. Tokens throughout; `in_`, `out` are means over requests."""

    def __init__(self, model: ModelSpec, block_size: int) -> None:
        demand = model.demand
        self.in_ = demand.input_tokens
        self.out = max(demand.output_tokens, 1.0)
        self.prompt = max(1, math.ceil(demand.input_tokens_quantile))
        """The prompt length that the prefill SLO is stated for."""
        self._classes = demand.classes
        self._slo = model.slo
        self._block_size = block_size
        self._rule = ReservationRule(expected_output_tokens=math.ceil(self.out))

    @property
    def prompt_attended(self) -> float:
        """Tokens that a prompt token attends to, mean over prompt tokens."""
        return sum(c.share * c.input_tokens**2 / 2 for c in self._classes) / self.in_

    @property
    def decode_attended(self) -> float:
        """Context of a decode row, mean over decode rows: the prompt and half of the output."""
        weighted = sum(
            c.share * c.output_tokens * (c.input_tokens + c.output_tokens / 2) for c in self._classes
        )
        return weighted / self.out

    def reserved(self, prompt: float, left: float) -> int:
        """Tokens of KV that the scheduler reserves at admission, in whole blocks."""
        return self._whole(self._rule.reserve(math.ceil(prompt), math.ceil(left)))

    def held_by(self, prompt: float, output: float) -> float:
        """Tokens of KV reserved for a request, in whole blocks: the mean over its output tokens."""
        known, total = math.ceil(prompt), math.ceil(prompt) + max(1, math.ceil(output))
        held = self._rule.reserve(known, total - known)
        spent, generated = 0.0, 0
        while True:  # at most output / extend_tokens turns
            spent += self._whole(held) * (held - known - generated)
            generated = held - known
            if held >= total:
                return spent / generated
            held = self._rule.extend(held, total)

    def _whole(self, tokens: int) -> int:
        return blocks(tokens, self._block_size) * self._block_size

    def residence_s(self, phase: Phase, request: RequestClass) -> float:
        """The longest that a request within its SLO is in the pipeline."""
        prefill = self._slo.prefill_s if phase != "decode" else 0.0
        return prefill + (self._slo.decode_s * request.output_tokens if phase != "prefill" else 0.0)

    def units(self, phase: Phase) -> float:
        """Units of throughput per request: prompt tokens, output tokens, or 1 where mixed."""
        return {"prefill": self.in_, "decode": self.out, "mixed": 1.0}[phase]

    def in_flight(self, phase: Phase) -> float:
        """Requests in flight per unit of throughput, by Little's law."""
        return sum(c.share * self.residence_s(phase, c) for c in self._classes) / self.units(phase)

    def held(self, phase: Phase) -> Callable[[float], float]:
        """`held(cap)`: KV tokens in flight per unit of throughput, a request holding at most `cap`."""

        def tokens(cap: float) -> float:
            per_request = (
                c.share * self.residence_s(phase, c) * min(cap, self._held_by(phase, c))
                for c in self._classes
            )
            return sum(per_request) / self.units(phase)

        return tokens

    def longest(self, phase: Phase) -> Callable[[float], float]:
        """`longest(cap)`: KV tokens of one request with the prompt that the SLO is stated for."""
        left = 1.0 if phase == "prefill" else self.out
        return lambda cap: min(cap, float(self.reserved(self.prompt, left)))

    def _held_by(self, phase: Phase, request: RequestClass) -> float:
        return self.held_by(request.input_tokens, 1.0 if phase == "prefill" else request.output_tokens)
