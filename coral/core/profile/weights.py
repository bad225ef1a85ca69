"""How many bytes and parameters a model's layers, embedding and output head have.

Counted from the shape: attention with GQA, gated MLP or experts with their router, the norms; biases are
left out (below 0.1 %). Quantised dtypes (below 2 bytes) apply to all matrices of a layer, but mxfp4 to expert
weights alone where there are experts, as gpt-oss has it; embedding and head are in the activation dtype then.
"""

from __future__ import annotations

import math

from msgspec import Struct

from coral.types.model import DTYPE_BYTES, ModelShape


class LayerWeights(Struct, frozen=True, kw_only=True):
    """Parameters of one layer: `attention` with router and norms, dense MLP, and ONE expert."""

    attention: int
    mlp: int
    expert: int

    def parameters(self, shape: ModelShape) -> int:
        return self.attention + self.mlp + (shape.moe.experts if shape.moe else 0) * self.expert

    def active(self, shape: ModelShape) -> int:
        """Parameters that one token is multiplied with."""
        return self.attention + self.mlp + (shape.moe.experts_per_token if shape.moe else 0) * self.expert


def layer_weights(shape: ModelShape) -> LayerWeights:
    width = shape.heads * shape.head_dim
    attention = shape.hidden * (2 * width + 2 * shape.kv_heads * shape.head_dim) + 2 * shape.hidden
    matrices = 3 if shape.gated_mlp else 2
    if shape.moe is None:
        return LayerWeights(attention=attention, mlp=matrices * shape.hidden * shape.intermediate, expert=0)
    return LayerWeights(
        attention=attention + shape.hidden * shape.moe.experts,
        mlp=matrices * shape.hidden * shape.moe.shared_intermediate,
        expert=matrices * shape.hidden * shape.moe.intermediate,
    )


def dense_bytes(shape: ModelShape) -> float:
    """Bytes per parameter outside of experts."""
    experts_alone = shape.weight_dtype == "mxfp4" and shape.moe is not None
    name = shape.activation_dtype if experts_alone else shape.weight_dtype
    return DTYPE_BYTES[name]


def layer_bytes(shape: ModelShape) -> int:
    weights = layer_weights(shape)
    experts = (shape.moe.experts if shape.moe else 0) * weights.expert * DTYPE_BYTES[shape.weight_dtype]
    return math.ceil((weights.attention + weights.mlp) * dense_bytes(shape) + experts)


def embed_bytes(shape: ModelShape) -> int:
    """Bytes of the embedding table, and of the output head where it is held apart."""
    name = shape.activation_dtype if DTYPE_BYTES[shape.weight_dtype] < 2.0 else shape.weight_dtype
    return math.ceil(shape.vocab * shape.hidden * DTYPE_BYTES[name])


def kv_token_bytes(shape: ModelShape) -> int:
    """Bytes of K and V of one token in one layer."""
    return math.ceil(2 * shape.kv_heads * shape.head_dim * DTYPE_BYTES[shape.kv_dtype])


def model_bytes(shape: ModelShape) -> int:
    """Bytes of the whole model; what the memory ratio ρ is a multiple of."""
    tables = 1 if shape.tied_embeddings else 2
    return shape.layers * layer_bytes(shape) + tables * embed_bytes(shape)
