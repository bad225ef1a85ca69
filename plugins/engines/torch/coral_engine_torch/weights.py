"""The weights of layers [a, b): what a stage holds, read from a checkpoint or drawn at random.

Projections that read the same input are held fused (q, k and v; gate and up), each part read straight
into its place. Shapes as in Hugging Face checkpoints: `[out, in]`, gpt-oss's experts `[expert, in, out]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coral_engine_torch.architecture import Architecture


class TensorSource(Protocol):
    """Fills tensors by their name in the checkpoint; `Checkpoint` is one."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, into: Tensor) -> None: ...


class RandomSource:
    """Small normal weights for every name that a checkpoint of the family would have, for timing."""

    def __init__(self, family: str, seed: int = 0) -> None:
        self._family, self._seed = family, seed

    def __contains__(self, name: str) -> bool:
        if name.endswith(".bias"):
            return self._family == "gpt_oss" or (self._family == "qwen2" and ".q_proj." in name)
        return True

    def read(self, name: str, into: Tensor) -> None:
        generator = torch.Generator(into.device).manual_seed(self._seed)
        into.normal_(std=0.02, generator=generator)


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Attention:
    """qkv: rows of q, then k, then v. `window` in tokens, 0 = full."""

    qkv: Linear
    out: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    sinks: Tensor | None
    window: int


@dataclass(frozen=True, slots=True)
class Mlp:
    """gate_up: rows of gate, then up."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Experts:
    """gate_up `[E, 2I, H]` and down `[E, H, I]`; gpt-oss `[E, H, 2I]` (interleaved), `[E, I, H]`."""

    router: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: Tensor
    attention: Attention
    post_norm: Tensor
    mlp: Mlp | Experts


@dataclass(frozen=True, slots=True)
class Weights:
    """`embedding` at the first stage, `norm` and `head` at the last; a tied head is the embedding."""

    first_layer: int
    layers: tuple[Layer, ...]
    embedding: Tensor | None
    norm: Tensor | None
    head: Tensor | None
    bytes: int


class Loader:
    """Allocates in `dtype` on `device` and fills from `source`, counting bytes."""

    def __init__(
        self, arch: Architecture, source: TensorSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._arch, self._source = arch, source
        self._dtype, self._device = dtype, device
        self._bytes = 0

    def stage(self, first: int, end: int, *, embedding: bool, head: bool) -> Weights:
        """Layers [first, end), with the embedding and the final norm and head where asked for."""
        arch = self._arch
        layers = tuple(self._layer(i) for i in range(first, end))
        table = norm = output = None
        if embedding or (head and arch.tied):
            table = self._read("model.embed_tokens.weight", arch.vocab, arch.hidden)
        if head:
            norm = self._read("model.norm.weight", arch.hidden)
            output = table if arch.tied else self._read("lm_head.weight", arch.vocab, arch.hidden)
        return Weights(first, layers, table if embedding else None, norm, output, self._bytes)

    def _layer(self, index: int) -> Layer:
        arch, prefix = self._arch, f"model.layers.{index}."
        return Layer(
            input_norm=self._read(prefix + "input_layernorm.weight", arch.hidden),
            attention=self._attention(prefix + "self_attn.", arch.windows[index]),
            post_norm=self._read(prefix + "post_attention_layernorm.weight", arch.hidden),
            mlp=self._mlp(prefix + "mlp."),
        )

    def _attention(self, prefix: str, window: int) -> Attention:
        arch = self._arch
        q, kv = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
        if arch.family == "phi3":
            qkv = self._linear([prefix + "qkv_proj"], [q + 2 * kv], arch.hidden)
        else:
            qkv = self._linear([prefix + f"{part}_proj" for part in "qkv"], [q, kv, kv], arch.hidden)
        return Attention(
            qkv=qkv,
            out=self._linear([prefix + "o_proj"], [arch.hidden], q),
            q_norm=self._read(prefix + "q_norm.weight", arch.head_dim) if arch.qk_norm else None,
            k_norm=self._read(prefix + "k_norm.weight", arch.head_dim) if arch.qk_norm else None,
            sinks=self._read(prefix + "sinks", arch.heads) if arch.sinks else None,
            window=window,
        )

    def _mlp(self, prefix: str) -> Mlp | Experts:
        arch = self._arch
        if arch.family == "gpt_oss":
            return self._interleaved_experts(prefix)
        if arch.experts and prefix + "gate.weight" in self._source:
            return self._experts(prefix)
        inner = arch.intermediate
        if arch.family == "phi3":
            gate_up = self._linear([prefix + "gate_up_proj"], [2 * inner], arch.hidden)
        else:
            gate_up = self._linear([prefix + "gate_proj", prefix + "up_proj"], [inner, inner], arch.hidden)
        return Mlp(gate_up, self._linear([prefix + "down_proj"], [arch.hidden], inner))

    def _experts(self, prefix: str) -> Experts:
        arch = self._arch
        inner = arch.expert_intermediate
        gate_up = self._empty(arch.experts, 2 * inner, arch.hidden)
        down = self._empty(arch.experts, arch.hidden, inner)
        for expert in range(arch.experts):
            name = f"{prefix}experts.{expert}."
            self._source.read(name + "gate_proj.weight", gate_up[expert, :inner])
            self._source.read(name + "up_proj.weight", gate_up[expert, inner:])
            self._source.read(name + "down_proj.weight", down[expert])
        router = self._linear([prefix + "gate"], [arch.experts], arch.hidden)
        return Experts(router, Linear(gate_up, None), Linear(down, None))

    def _interleaved_experts(self, prefix: str) -> Experts:
        arch, name = self._arch, prefix + "experts."
        count, inner = arch.experts, arch.expert_intermediate
        gate_up = Linear(
            self._read(name + "gate_up_proj", count, arch.hidden, 2 * inner),
            self._read(name + "gate_up_proj_bias", count, 2 * inner),
        )
        down = Linear(
            self._read(name + "down_proj", count, inner, arch.hidden),
            self._read(name + "down_proj_bias", count, arch.hidden),
        )
        return Experts(self._linear([prefix + "router"], [count], arch.hidden), gate_up, down)

    def _linear(self, names: list[str], rows: list[int], columns: int) -> Linear:
        """Several projections of one input, one below the other; biases where the checkpoint has them."""
        weight = self._empty(sum(rows), columns)
        bias = self._empty(sum(rows)) if names[0] + ".bias" in self._source else None
        low = 0
        for name, count in zip(names, rows, strict=True):
            self._source.read(name + ".weight", weight[low : low + count])
            if bias is not None:
                self._source.read(name + ".bias", bias[low : low + count])
            low += count
        return Linear(weight, bias)

    def _read(self, name: str, *shape: int) -> Tensor:
        tensor = self._empty(*shape)
        self._source.read(name, tensor)
        return tensor

    def _empty(self, *shape: int) -> Tensor:
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        self._bytes += tensor.nbytes
        return tensor
