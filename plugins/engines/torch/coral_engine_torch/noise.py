"""Random numbers that are a pure function of (seed, position, token), the same on every device.

SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): output i of the stream
that starts at k is mix(k + (i + 1) γ). The stream of a draw starts at mix(mix(seed) + position γ).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GAMMA, _A, _B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """SplitMix64's finaliser on one 64-bit integer."""
    z = ((z ^ (z >> 30)) * _A) & _MASK
    z = ((z ^ (z >> 27)) * _B) & _MASK
    return z ^ (z >> 31)


def stream(seed: int, position: int) -> int:
    """Where the stream of one draw starts."""
    return mix((mix(seed & _MASK) + position * _GAMMA) & _MASK)


def exponentials(streams: Sequence[int], n: int, device: torch.device) -> Tensor:
    """The first n numbers of each stream as draws of Exp(1), fp64 `[len(streams), n]`."""
    steps = torch.arange(1, n + 1, device=device) * _signed(_GAMMA)  # int64 wraps, as is meant
    z = torch.tensor([_signed(s) for s in streams], device=device)[:, None] + steps
    z = (z ^ _shift(z, 30)) * _signed(_A)
    z = (z ^ _shift(z, 27)) * _signed(_B)
    z = z ^ _shift(z, 31)
    uniform = (_shift(z, 11).double() + 0.5) * 2.0**-53
    return uniform.log_().neg_()


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical right shift; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
