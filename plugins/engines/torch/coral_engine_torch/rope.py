"""Rotary position embedding: inverse frequencies of each published kind, tables, rotation.

Kinds: default, linear, llama3, yarn (arXiv 2309.00071), longrope (arXiv 2402.13753). `dynamic` is refused:
its frequencies change with the sequence's length, so cached keys would not stay valid.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from coral.errors import EngineError
from coral_engine_torch.architecture import Architecture


def inverse_frequencies(arch: Architecture, max_model_len: int) -> tuple[Tensor, float]:
    """(R/2 inverse frequencies in fp32, factor of cos and sin), R the rotated part of head_dim."""
    rope = arch.rope
    kind = rope["rope_type"]
    rotated = int(arch.head_dim * rope.get("partial_rotary_factor", 1.0))
    wavelengths = float(rope["rope_theta"]) ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
    match kind:
        case "default":
            return 1.0 / wavelengths, 1.0
        case "linear":
            return 1.0 / wavelengths / float(rope["factor"]), 1.0
        case "llama3":
            return _llama3(1.0 / wavelengths, rope), 1.0
        case "yarn":
            return _yarn(wavelengths, rotated, rope, arch.max_positions)
        case "longrope":
            return _longrope(wavelengths, rope, arch.max_positions, max_model_len)
        case _:
            raise EngineError(
                f"the torch engine knows no rope of kind {kind!r}",
                mend="known are default, linear, llama3, yarn and longrope",
            )


def _llama3(inverse: Tensor, rope: dict[str, Any]) -> Tensor:
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    length = float(rope["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse
    smooth = ((length / wavelength - low) / (high - low)).clamp(0, 1)  # 0: scaled, 1: left alone
    return (1 - smooth) * inverse / factor + smooth * inverse


def _yarn(
    wavelengths: Tensor, rotated: int, rope: dict[str, Any], max_positions: int
) -> tuple[Tensor, float]:
    length = float(rope["original_max_position_embeddings"])
    factor = float(rope.get("factor") or max_positions / length)
    base = float(rope["rope_theta"])

    def dimension(rotations: float) -> float:
        return rotated * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32.0), dimension(rope.get("beta_slow") or 1.0)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    if low == high:
        high += 0.001
    scaled = ((torch.arange(rotated // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse = scaled / (factor * wavelengths) + (1 - scaled) / wavelengths
    return inverse, _yarn_attention(rope, factor)


def _yarn_attention(rope: dict[str, Any], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
    return mscale(1.0)


def _longrope(
    wavelengths: Tensor, rope: dict[str, Any], max_positions: int, max_model_len: int
) -> tuple[Tensor, float]:
    """The long factors where sequences may pass the original length: one choice for all of them, so
    that cached keys stay valid (transformers switches in mid-sequence)."""
    length = float(rope["original_max_position_embeddings"])
    scale = torch.tensor(
        rope["long_factor" if max_model_len > length else "short_factor"], dtype=torch.float32
    )
    factor = float(rope.get("factor") or max_positions / length)
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
    return 1.0 / (scale * wavelengths), float(attention)


class Rope:
    """cos and sin for every position below `max_model_len`, `[positions, R/2]` in the layers' dtype."""

    def __init__(
        self, arch: Architecture, max_model_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        inverse, factor = inverse_frequencies(arch, max_model_len)
        angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), inverse)
        self._cos = (angles.cos() * factor).to(device, dtype)
        self._sin = (angles.sin() * factor).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin `[T, 1, R/2]` for positions `[T]`."""
        return self._cos[positions][:, None], self._sin[positions][:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x `[T, heads, head_dim]` turned by its position; dimensions after the rotated part stay."""
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cos - second * sin, second * cos + first * sin]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return torch.cat(parts, -1)
