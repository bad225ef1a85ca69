"""A model's layer, embedding and output head as operators, from its shape alone.

Per layer two norms, the product for Q, K and V, attention, the output product, and either a dense MLP (up
and gate in one product, activation, down) or a router with experts and, where there are, shared ones. With
tensor parallel degree t every product is split t ways, KV heads too as long as there are enough, and two
all-reduces of the hidden rows follow. So engines of today run it (vLLM, SGLang, TensorRT-LLM).
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from coral.types.model import ModelShape
from coral_profiler_aiconfigurator.systems import Formats

BANDWIDTH = 0.8
"""Share of memory bandwidth that element-wise kernels reach, as the database's own models take it."""

EXPERT_LOAD = "power_law_1.2"
"""How tokens spread over experts: the skew that the database's own models take for MoE."""


NORMED = frozenset({"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"})
"""Architectures that norm Q and K before attention; a shape does not tell."""


class Heads(Struct, frozen=True, kw_only=True):
    """Attention heads of one GPU. `times`: so many times the rows stand for heads that are left out."""

    query: int
    kv: int
    times: float = 1.0

    @classmethod
    def of(cls, shape: ModelShape, tp: int) -> Heads:
        return cls(query=shape.heads // tp, kv=max(1, shape.kv_heads // tp))

    def in_powers_of_two(self) -> Heads:
        """The same work by the next lower power of two of KV heads, in groups of the same size."""
        kv = 1 << (self.kv.bit_length() - 1)
        return Heads(query=self.query * kv // self.kv, kv=kv, times=self.times * self.kv / kv)


def dense_operators(shape: ModelShape, tp: int, name: str) -> list[Any]:
    """Of one layer, without attention and experts, whose product kernels are of the format `name`."""
    from aiconfigurator_core.sdk import common, operations

    h = shape.hidden
    q = shape.heads * shape.head_dim // tp
    kv = 2 * max(1, shape.kv_heads // tp) * shape.head_dim
    norm = operations.ElementWise("norm", 2, 2 * h, 2 * h, BANDWIDTH)
    quant = common.GEMMQuantMode[name]
    found = [
        norm,
        operations.GEMM("qkv", 1, q + kv, h, quant),
        operations.GEMM("output", 1, h, q, quant, low_precision_input=True),
    ]
    wide = shape.intermediate if shape.moe is None else shape.moe.shared_intermediate
    if wide:
        inner = max(1, wide // tp)
        up = 2 * inner if shape.gated_mlp else inner
        found += [
            operations.GEMM("up", 1, up, h, quant),
            operations.ElementWise("activation", 1, up, inner, BANDWIDTH),
            operations.GEMM("down", 1, h, inner, quant, low_precision_input=True),
        ]
    if shape.moe is not None:
        found.append(operations.GEMM("router", 1, shape.moe.experts, h, common.GEMMQuantMode.bfloat16))
    return found


def expert_operators(shape: ModelShape, tp: int, ep: int, name: str) -> list[Any]:
    """The experts of one layer, each split `tp` ways, or spread over `ep` GPUs, in kernels of the format
    `name`; an all-reduce follows either way."""
    from aiconfigurator_core.sdk import common, operations

    assert shape.moe is not None
    return [
        operations.MoE(
            "experts",
            1,
            shape.hidden,
            shape.moe.intermediate,
            shape.moe.experts_per_token,
            shape.moe.experts,
            tp,
            ep,
            common.MoEQuantMode[name],
            EXPERT_LOAD,
            1,
            is_gated=shape.gated_mlp,
        )
    ]


def prompt_attention(shape: ModelShape, heads: Heads, formats: Formats, window: int) -> list[Any]:
    """Attention of prompts in one layer, with rotation of Q and K and the write to the KV."""
    from aiconfigurator_core.sdk import common, operations

    return [
        operations.ContextAttention(
            "attention",
            1,
            heads.query,
            heads.kv,
            common.KVCacheQuantMode[formats.kv],
            common.FMHAQuantMode.bfloat16,
            window_size=window,
            head_size=shape.head_dim,
            use_qk_norm=shape.architecture in NORMED,
        )
    ]


def row_attention(shape: ModelShape, heads: Heads, formats: Formats, window: int) -> list[Any]:
    """Attention of decode rows in one layer."""
    from aiconfigurator_core.sdk import common, operations

    return [
        operations.GenerationAttention(
            "attention",
            1,
            heads.query,
            heads.kv,
            common.KVCacheQuantMode[formats.kv],
            window_size=window,
            head_size=shape.head_dim,
            use_qk_norm=shape.architecture in NORMED,
        )
    ]


def all_reduce(shape: ModelShape, tp: int) -> list[Any]:
    """One all-reduce of hidden rows, among the next power of two of GPUs: others were not measured."""
    from aiconfigurator_core.sdk import operations

    return [operations.CustomAllReduce("all-reduce", 1, shape.hidden, _power_of_two(tp))]


def embedding(shape: ModelShape, tp: int) -> list[Any]:
    from aiconfigurator_core.sdk import operations

    return [operations.Embedding("embedding", 1, math.ceil(shape.vocab / tp), shape.hidden, 0.3)]


def logits(shape: ModelShape, tp: int) -> list[Any]:
    """The output head, in bfloat16 whatever the layers are in."""
    from aiconfigurator_core.sdk import common, operations

    rows = math.ceil(shape.vocab / tp)
    return [operations.GEMM("logits", 1, rows, shape.hidden, common.GEMMQuantMode.bfloat16)]


def gather(shape: ModelShape, tp: int) -> list[Any]:
    """The parts of the logits brought together."""
    from aiconfigurator_core.sdk import common, operations

    gpus = _power_of_two(tp)
    return [operations.NCCL("gather", 1, "all_gather", shape.vocab, gpus, common.CommQuantMode.half)]


def _power_of_two(tp: int) -> int:
    return 1 << (tp - 1).bit_length()
