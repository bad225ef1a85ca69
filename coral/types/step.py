"""What one engine step costs: the only interface between profilers and everything that decides.

A `StepCost` (Protocol in `coral.hookspecs.profiler`) answers for one (model, GPU, engine).
`AffineStepCost` is the built-in concrete one: cheap, serialisable, and what the mock engine runs on.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Provenance = Literal["measured", "interpolated", "analytic"]


class StepWork(Struct, frozen=True, kw_only=True):
    """A ragged batch: prompt tokens and decode rows with what they attend to.

    `prefill_context` is the sum over prompt tokens of the tokens each attends to;
    `decode_context` the sum over decode rows of their context lengths.
    `logit_rows`: rows that pass the output head (decode rows, and prompts that complete).
    """

    prefill_tokens: float = 0.0
    prefill_context: float = 0.0
    decode_rows: float = 0.0
    decode_context: float = 0.0
    logit_rows: float = 0.0

    @property
    def tokens(self) -> float:
        return self.prefill_tokens + self.decode_rows


class AffineStepCost(Struct, frozen=True, kw_only=True):
    """Seconds of one step on one device, affine in the work. All coefficients are >= 0.

    step = overhead_s
         + layers × (layer_s + token_s × tokens + attend_s × (prefill_context + decode_context))
         + [first] embed_token_s × tokens
         + [last]  head_s + logit_row_s × logit_rows
         + layers × allreduce(tokens)          when tp > 1
    """

    gpu: str
    engine: str
    engine_version: str
    provenance: Provenance
    error: float
    """Stated relative error of the whole-step time (0.15 = 15 %)."""
    overhead_s: float
    layer_s: float
    token_s: float
    attend_s: float
    embed_token_s: float = 0.0
    head_s: float = 0.0
    logit_row_s: float = 0.0
    allreduce_s: float = 0.0
    """Latency of one all-reduce; two per layer."""
    allreduce_token_s: float = 0.0
    layer_bytes: int = 0
    embed_bytes: int = 0
    head_bytes: int = 0
    """Bytes of the output head where it is held apart; equals embed_bytes when tied."""
    kv_token_bytes: int = 0
    """KV bytes per token and layer."""
    fixed_bytes: int = 0
    """Runtime and workspace of the engine on a device, whatever it holds."""

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        """Seconds of one step over `layers` layers with tensor parallel degree `tp`."""
        attended = work.prefill_context + work.decode_context
        t = self.overhead_s
        t += layers * (self.layer_s + self.token_s * work.tokens + self.attend_s * attended) / tp
        if first:
            t += self.embed_token_s * work.tokens
        if last:
            t += (self.head_s + self.logit_row_s * work.logit_rows) / tp
        if tp > 1:
            t += layers * 2 * (self.allreduce_s + self.allreduce_token_s * work.tokens)
        return t

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        """Bytes of weights a stage holds; a tied embedding is held once where first and last meet."""
        total = layers * self.layer_bytes
        if first:
            total += self.embed_bytes
        if last and not (first and tied):
            total += self.head_bytes
        return total


class Measurement(Struct, frozen=True, kw_only=True):
    """One timed step of a real engine: what `coral profile` fits step costs from."""

    work: StepWork
    layers: int
    first: bool
    last: bool
    seconds: float
    tp: int = 1


class Measurements(Struct, frozen=True, kw_only=True):
    """What a measuring run of an engine prints as JSON on its standard output."""

    engine: str
    engine_version: str
    device: str
    points: tuple[Measurement, ...]
    fixed_bytes: int
    layer_bytes: int
    embed_bytes: int
    head_bytes: int
    kv_token_bytes: int
