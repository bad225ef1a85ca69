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


class StepParts(Struct, frozen=True, kw_only=True):
    """Where the seconds of one step go; each figure is for the whole step, all its layers together.

    Fields are numbers, or arrays that broadcast where the cost is elementwise.
    """

    compute_s: float = 0.0
    """Matrices, experts, norms: whatever is neither attention nor one of the parts below."""
    attention_s: float = 0.0
    """Attention over the context, without its projections."""
    allreduce_s: float = 0.0
    """Collectives of tensor parallelism; 0 where its degree is 1."""
    embedding_s: float = 0.0
    logits_s: float = 0.0
    overhead_s: float = 0.0
    """Per step, whatever is in it: scheduling, input preparation, sampling."""

    @property
    def step_s(self) -> float:
        """The whole step: the sum of the parts."""
        return (
            self.overhead_s
            + self.compute_s
            + self.attention_s
            + self.allreduce_s
            + self.embedding_s
            + self.logits_s
        )


class AffineStepCost(Struct, frozen=True, kw_only=True):
    """Seconds of one step on one device, affine in the work. All coefficients are >= 0.

    step = overhead_s
         + layers × (layer_s + token_s × tokens + attend_s × (prefill_context + decode_context)
                     + decode_attend_s × decode_context)
         + [first] embed_token_s × tokens
         + [last]  head_s + logit_row_s × logit_rows
         + layers × allreduce(tokens)          when tp > 1
    """

    gpu: str
    profiler: str = ""
    """Name of the profiler that it comes from."""
    engine: str
    engine_version: str
    provenance: Provenance
    error: float
    """Stated relative error of the whole-step time (0.15 = 15 %)."""
    overhead_s: float
    layer_s: float
    token_s: float
    attend_s: float
    decode_attend_s: float = 0.0
    """What a token attended to costs a decode row more than a prompt's, which shares what it reads."""
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

    @property
    def elementwise(self) -> bool:
        return True

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        """Seconds of one step over `layers` layers with tensor parallel degree `tp`."""
        return self.step_parts(work, layers, first=first, last=last, tp=tp).step_s

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        """The same step by its parts."""
        tokens = work.tokens
        reduced = 2 * (self.allreduce_s + self.allreduce_token_s * tokens) if tp > 1 else 0.0
        return StepParts(
            overhead_s=self.overhead_s,
            compute_s=layers * (self.layer_s + self.token_s * tokens) / tp,
            attention_s=layers * self._attended_s(work) / tp,
            allreduce_s=layers * reduced,
            embedding_s=self.embed_token_s * tokens if first else 0.0,
            logits_s=(self.head_s + self.logit_row_s * work.logit_rows) / tp if last else 0.0,
        )

    def _attended_s(self, work: StepWork) -> float:
        both = self.attend_s * (work.prefill_context + work.decode_context)
        return both + self.decode_attend_s * work.decode_context

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
