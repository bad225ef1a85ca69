"""An analytic step cost: each part of a step takes as long as its arithmetic or its memory traffic.

Per layer   max(2 · active parameters · tokens / F,  weight bytes read / B)
          + max(4 · heads · head_dim · attended / F, KV bytes read / B) + launch
Head        max(2 · hidden · vocab · rows / F, head bytes / B)
All-reduce  two per layer: latency + 2 (t-1)/t · tokens · hidden · bytes / link

F and B are peak figures times an efficiency. Experts: those that a batch hits, E (1 - (1 - k/E)^tokens),
are read; the active ones are computed. A link below 64 GB/s is PCIe, which GPUs share: measured
all-reduce of 8.4 M bf16 on L40S (0.89, 6.7, 15.8 ms at TP 2, 4, 8) is link / (1.25 t) from t = 3 on,
within 2 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from coral.core.profile import weights
from coral.core.profile.windows import window_of, worst_full_layers
from coral.types.hardware import Gpu
from coral.types.model import DTYPE_BYTES, ModelShape
from coral.types.step import Provenance, StepParts, StepWork

PCIE_BYTES_PER_S = 64e9


class Efficiency(Struct, frozen=True, kw_only=True):
    """Shares of the peak figures that an engine reaches, and its fixed costs."""

    compute: float = 0.55
    bandwidth: float = 0.75
    launch_s: float = 25e-6
    """Per layer."""
    overhead_s: float = 1e-3
    """Per step: scheduling, input preparation."""
    memory: float = 0.90
    """Share of a device's memory that may be used."""
    workspace_bytes: int = 1 << 30
    error: float = 0.35


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
        return layers * weights.layer_bytes(self.shape) + tables * table

    def linear_s(self, tokens: Any, tp: int) -> Any:
        """Matrices of one layer."""
        parts = weights.layer_weights(self.shape)
        flops = 2.0 * parts.active(self.shape) * tokens / tp
        read = (parts.attention + parts.mlp) * weights.dense_bytes(self.shape)
        read = read + self.experts_hit(tokens) * parts.expert * DTYPE_BYTES[self.shape.weight_dtype]
        return np.maximum(flops / self._flops, read / tp / self._bandwidth)

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
            link = link / (1.25 * tp)
        size = tokens * self.shape.hidden * DTYPE_BYTES[self.shape.activation_dtype]
        return 2.0 * (self.gpu.link_latency_s + 2.0 * (tp - 1) / tp * size / link)

    def embedding_s(self, tokens: Any) -> Any:
        row = self.shape.hidden * DTYPE_BYTES[self.shape.activation_dtype]
        return 2.0 * tokens * row / self._bandwidth

    def logits_s(self, rows: Any, tp: int) -> Any:
        flops = 2.0 * self.shape.hidden * self.shape.vocab * rows / tp
        return np.maximum(flops / self._flops, weights.embed_bytes(self.shape) / tp / self._bandwidth)

    def _attend_s(self, prefill_context: Any, decode_context: Any, tp: int) -> Any:
        width = self.shape.heads * self.shape.head_dim
        flops = 4.0 * width * (prefill_context + decode_context) / tp
        read = decode_context * self.kv_token_bytes / tp
        return np.maximum(flops / self._flops, read / self._bandwidth)

    @property
    def _flops(self) -> float:
        return flops_of(self.gpu, self.shape) * self.efficiency.compute

    @property
    def _bandwidth(self) -> float:
        return self.gpu.memory_bytes_per_s * self.efficiency.bandwidth


def flops_of(gpu: Gpu, shape: ModelShape) -> float:
    """Peak FLOP/s at the dtype that products are taken in; float16 stands in where a GPU lacks bfloat16."""
    wanted = "float8" if shape.weight_dtype == "float8" else shape.activation_dtype
    for dtype in (wanted, shape.activation_dtype, "float16", "float32"):
        if dtype in gpu.flops:
            return gpu.flops[dtype]
    return 0.0
