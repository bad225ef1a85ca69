"""Runs layers [a, b) over a ragged batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from coral_engine_torch.architecture import Architecture
from coral_engine_torch.attention import attend
from coral_engine_torch.batch import Batch
from coral_engine_torch.experts import interleaved_experts, routed_experts
from coral_engine_torch.kv import KvCache
from coral_engine_torch.rope import Rope, rotate
from coral_engine_torch.weights import Attention, Experts, Linear, Mlp, Weights


def apply(projection: Linear, x: Tensor) -> Tensor:
    return linear(x, projection.weight, projection.bias)


class Executor:
    """The forward pass of one stage. Holds no state but weights and cache."""

    def __init__(self, arch: Architecture, weights: Weights, cache: KvCache, rope: Rope) -> None:
        self._arch, self._weights, self._cache, self._rope = arch, weights, cache, rope

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """`[T]` ids to `[T, hidden]`; only at the first stage."""
        assert self._weights.embedding is not None
        return embedding(token_ids, self._weights.embedding)

    @torch.inference_mode()
    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """`[T, hidden]` to `[T, hidden]`; writes the rows' keys and values to the cache."""
        cos, sin = self._rope.at(batch.positions)
        eps, size = self._arch.norm_eps, (self._arch.hidden,)
        for i, layer in enumerate(self._weights.layers):
            attention = layer.attention
            q, k, v = self._qkv(attention, rms_norm(x, size, layer.input_norm, eps), cos, sin)
            keys, values = self._cache.keys(i), self._cache.values(i)
            mixed = attend(q, k, v, keys, values, batch, attention.window, attention.sinks)
            x = x + apply(attention.out, mixed.view(len(x), -1))
            h = rms_norm(x, size, layer.post_norm, eps)
            x = x + (
                self._experts(layer.mlp, h) if isinstance(layer.mlp, Experts) else self._mlp(layer.mlp, h)
            )
        return x

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """`[R, hidden]` to fp32 `[R, vocab]`; only at the last stage."""
        assert self._weights.norm is not None
        assert self._weights.head is not None
        x = rms_norm(x, (self._arch.hidden,), self._weights.norm, self._arch.norm_eps)
        return linear(x, self._weights.head).float()

    def _qkv(
        self, attention: Attention, h: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        arch = self._arch
        qkv = apply(attention.qkv, h).view(len(h), -1, arch.head_dim)
        q, k, v = torch.split(qkv, [arch.heads, arch.kv_heads, arch.kv_heads], 1)
        if attention.q_norm is not None:
            q = rms_norm(q, (arch.head_dim,), attention.q_norm, arch.norm_eps)
            k = rms_norm(k, (arch.head_dim,), attention.k_norm, arch.norm_eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def _mlp(self, mlp: Mlp, h: Tensor) -> Tensor:
        gate, up = apply(mlp.gate_up, h).chunk(2, -1)
        return apply(mlp.down, silu(gate).mul_(up))

    def _experts(self, experts: Experts, h: Tensor) -> Tensor:
        arch = self._arch
        if arch.family == "gpt_oss":
            return interleaved_experts(
                h, experts, arch.experts_per_token, arch.swiglu_alpha, arch.swiglu_limit
            )
        return routed_experts(h, experts, arch.experts_per_token, arch.renormalise_experts)
