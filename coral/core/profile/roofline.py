"""An analytic step cost: a part of a step takes its arithmetic and its memory traffic, whichever is longer.

    max₂(a, b) = √(a² + b²), as neither hides wholly behind the other; measured GEMMs fit exponents 1.6 to 2.7
    Matrices, per layer     max₂(2 · parameters · tokens / F,  weight bytes / B)
    Experts, per layer      max₂(2 · parameters · tokens · k / (s · F),  bytes of those hit / B)
    Rows, per layer         tokens · (10 · hidden + 3 · intermediate / t) · bytes / B: norms, residuals, gates
    Attention, per layer    4 · heads · head_dim · prefill context / A  +  KV bytes of decode context / B
    Head                    max₂(2 · hidden · vocab · rows / F, head bytes / B)
    All-reduce, two a layer latency + 2 (t-1)/t · tokens · hidden · bytes / link
    Fixed                   launch per layer, overhead per step

F, A and B are peak figures times the shares of `calibration`. Experts: those that a batch hits, E (1 - (1 -
k/E)^tokens), are read; grouped products reach a share s of what single ones do, less where weights are
unpacked on the way (median error over measured fused experts 11 to 18 %). GPUs that meet over PCIe share
the host's path: from three on, a link is at most HOST_PATH / t. Measured so on L40S (all-reduce of 8.4 M
bf16 0.89, 6.7 and 15.8 ms at TP 2, 4, 8) and on T4 at TP 4."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, structs

from coral.core.profile import weights
from coral.core.profile.calibration import Efficiency
from coral.core.profile.precision import Precision, precision
from coral.core.profile.windows import window_of, worst_full_layers
from coral.types.hardware import Gpu
from coral.types.model import DTYPE_BYTES, ModelShape
from coral.types.step import Provenance, StepParts, StepWork

PCIE_BYTES_PER_S = 64e9
"""A link below this is PCIe."""
HOST_PATH_BYTES_PER_S = 15.1e9
EXPERT_SHARE, EXPERT_SHARE_UNPACKED = 0.45, 0.30
EXPERT_LAUNCH_S = 15e-6
"""Router, sorting and grouped products, beyond a dense layer's launch."""
HIDDEN_PASSES, GATE_PASSES = 10, 3


class RooflineStepCost(Struct, frozen=True, kw_only=True):
    """`coral.hookspecs.profiler.StepCost` from a shape and a GPU's data sheet.

    `step_s` is elementwise: the fields of its work, and `layers`, may be arrays that broadcast.
    """

    shape: ModelShape
    gpu: Gpu
    engine: str
    engine_version: str
    efficiency: Efficiency
    profiler: str = "analytic"
    provenance: Provenance = "analytic"

    @property
    def error(self) -> float:
        return self.efficiency.error

    @property
    def kv_token_bytes(self) -> int:
        return weights.kv_token_bytes(self.shape)

    @property
    def fixed_bytes(self) -> int:
        kept = (1 - self.efficiency.memory) * self.gpu.memory_bytes
        return int(kept) + self.efficiency.workspace_bytes

    @property
    def elementwise(self) -> bool:
        return True

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        return self.step_parts(work, layers, first=first, last=last, tp=tp).step_s

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        return StepParts(
            overhead_s=self.efficiency.overhead_s,
            compute_s=layers * (self.linear_s(work.tokens, tp) + self.efficiency.launch_s),
            attention_s=self.attention_s(work, layers, tp),
            allreduce_s=layers * self.all_reduce_s(work.tokens, tp) if tp > 1 else 0.0,
            embedding_s=self.embedding_s(work.tokens) if first else 0.0,
            logits_s=self.logits_s(work.logit_rows, tp) if last else 0.0,
        )

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        table = weights.embed_bytes(self.shape)
        tables = int(first) + int(last and not (first and tied))
        return layers * weights.layer_bytes(self._held) + tables * table

    @property
    def precision(self) -> Precision:
        return precision(self.gpu, self.shape)

    @property
    def stand_in(self) -> str:
        """What stands in for a dtype that the GPU lacks, in words; empty where nothing does."""
        return self.precision.stand_in

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures take for granted."""
        return (f"stands in: {self.stand_in}",) if self.stand_in else ()

    def linear_s(self, tokens: Any, tp: int) -> Any:
        """Matrices of one layer, its experts, and the passes over rows between them."""
        shape = self._held
        parts = weights.layer_weights(shape)
        dense = parts.attention + parts.mlp
        flops = self._flops_16 if weights.dense_bytes(shape) >= 2.0 else self._flops
        time = _longer(
            2.0 * dense * tokens / tp / flops, dense * weights.dense_bytes(shape) / tp / self._bandwidth
        )
        return time + self.experts_s(tokens, tp) + self.rows_s(tokens, tp)

    def experts_s(self, tokens: Any, tp: int) -> Any:
        """Experts of one layer; 0 where it has none."""
        shape = self._held
        if shape.moe is None:
            return 0.0
        expert = weights.layer_weights(shape).expert
        hit = self.experts_hit(tokens)
        rows = tokens * shape.moe.experts_per_token
        read = hit * expert * DTYPE_BYTES[shape.weight_dtype]
        unpacked = DTYPE_BYTES[shape.weight_dtype] < 2.0 and not self.precision.low
        grouped = self._flops * (EXPERT_SHARE_UNPACKED if unpacked else EXPERT_SHARE)
        return _longer(2.0 * expert * rows / tp / grouped, read / tp / self._bandwidth) + EXPERT_LAUNCH_S

    def rows_s(self, tokens: Any, tp: int) -> Any:
        """Norms, residuals and gates of one layer: passes over rows in the activation dtype."""
        shape, moe = self.shape, self.shape.moe
        inner = shape.intermediate if moe is None else moe.experts_per_token * moe.intermediate
        passed = HIDDEN_PASSES * shape.hidden + GATE_PASSES * inner / tp
        return tokens * passed * DTYPE_BYTES[shape.activation_dtype] / self._bandwidth

    def experts_hit(self, tokens: Any) -> Any:
        """Experts that at least one of `tokens` tokens is sent to, routed evenly."""
        moe = self.shape.moe
        if moe is None:
            return 0.0
        return moe.experts * (1.0 - (1.0 - moe.experts_per_token / moe.experts) ** tokens)

    def attention_s(self, work: StepWork, layers: Any, tp: int) -> Any:
        """Attention of the worst run of `layers` layers (see `windows`)."""
        full_layers = worst_full_layers(self.shape.windows, self.shape.layers)[layers]
        full = self._attend_s(work.prefill_context, work.decode_context, tp)
        window = window_of(self.shape)
        if not window:
            return full_layers * full
        capped = self._attend_s(
            np.minimum(work.prefill_context, work.prefill_tokens * window),
            np.minimum(work.decode_context, work.decode_rows * window),
            tp,
        )
        return full_layers * full + (layers - full_layers) * capped

    def all_reduce_s(self, tokens: Any, tp: int) -> Any:
        """Both all-reduces of one layer."""
        link = self.gpu.link_bytes_per_s or PCIE_BYTES_PER_S / 4
        if link < PCIE_BYTES_PER_S and tp > 2:
            link = min(link, HOST_PATH_BYTES_PER_S / tp)
        size = tokens * self.shape.hidden * DTYPE_BYTES[self.shape.activation_dtype]
        return 2.0 * (self.gpu.link_latency_s + 2.0 * (tp - 1) / tp * size / link)

    def embedding_s(self, tokens: Any) -> Any:
        row = self.shape.hidden * DTYPE_BYTES[self.shape.activation_dtype]
        return 2.0 * tokens * row / self._bandwidth

    def logits_s(self, rows: Any, tp: int) -> Any:
        flops = 2.0 * self.shape.hidden * self.shape.vocab * rows / tp
        return _longer(flops / self._flops_16, weights.embed_bytes(self.shape) / tp / self._bandwidth)

    def _attend_s(self, prefill_context: Any, decode_context: Any, tp: int) -> Any:
        width = self.shape.heads * self.shape.head_dim
        flops = self.precision.flops_16 * self.efficiency.attention
        read = decode_context * self.kv_token_bytes / tp
        return 4.0 * width * prefill_context / tp / flops + read / self._bandwidth

    @property
    def _held(self) -> ModelShape:
        """The shape as its weights lie in memory."""
        kept = self.precision.weight_dtype
        if kept == self.shape.weight_dtype:
            return self.shape
        return structs.replace(self.shape, weight_dtype=kept)

    @property
    def _flops(self) -> float:
        own = self.precision
        return own.flops * (self.efficiency.compute_low if own.low else self.efficiency.compute)

    @property
    def _flops_16(self) -> float:
        return self.precision.flops_16 * self.efficiency.compute

    @property
    def _bandwidth(self) -> float:
        return self.gpu.memory_bytes_per_s * self.efficiency.bandwidth


def _longer(arithmetic: Any, traffic: Any) -> Any:
    return np.sqrt(arithmetic**2 + traffic**2)
