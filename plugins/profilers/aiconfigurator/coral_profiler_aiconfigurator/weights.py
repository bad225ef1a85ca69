"""Bytes of a model's layers, embedding, output head and KV, counted from its shape.

As Coral's own profilers count them: attention with GQA, MLP or experts with their router, two norms;
biases are left out (below 0.1 %). mxfp4 is the format of experts alone where there are some; embedding and
head are in the activation format where layers have fewer than two bytes a weight.
"""

from __future__ import annotations

import math

from coral.types.model import DTYPE_BYTES, ModelShape
from coral_profiler_aiconfigurator.systems import EXPERTS_ALONE


def layer_bytes(shape: ModelShape) -> int:
    width = shape.heads * shape.head_dim
    matrices = 3 if shape.gated_mlp else 2
    dense = shape.hidden * (2 * width + 2 * shape.kv_heads * shape.head_dim) + 2 * shape.hidden
    if shape.moe is None:
        return math.ceil(
            (dense + matrices * shape.hidden * shape.intermediate) * DTYPE_BYTES[shape.weight_dtype]
        )
    dense += shape.hidden * (shape.moe.experts + matrices * shape.moe.shared_intermediate)
    experts = shape.moe.experts * matrices * shape.hidden * shape.moe.intermediate
    of_dense = shape.activation_dtype if shape.weight_dtype == EXPERTS_ALONE else shape.weight_dtype
    return math.ceil(dense * DTYPE_BYTES[of_dense] + experts * DTYPE_BYTES[shape.weight_dtype])


def table_bytes(shape: ModelShape) -> int:
    """Of the embedding, and of the output head where it is held apart."""
    name = shape.activation_dtype if DTYPE_BYTES[shape.weight_dtype] < 2.0 else shape.weight_dtype
    return math.ceil(shape.vocab * shape.hidden * DTYPE_BYTES[name])


def kv_token_bytes(shape: ModelShape) -> int:
    """Of K and V of one token in one layer."""
    return math.ceil(2 * shape.kv_heads * shape.head_dim * DTYPE_BYTES[shape.kv_dtype])
