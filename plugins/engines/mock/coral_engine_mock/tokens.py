"""What the mock says and carries: pure functions of the sequence, so that any replay must agree."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from coral.types.request import Sampling

Floats = NDArray[np.float32]

_MASK = (1 << 64) - 1
_SEED = 0xCBF29CE484222325
_PRIME = 0x100000001B3


def fold(state: int, tokens: Iterable[int]) -> int:
    """The state of a sequence after more tokens (FNV-1a over tokens)."""
    for token in tokens:
        state = ((state ^ (token + 1)) * _PRIME) & _MASK
    return state


def start(sampling: Sampling) -> int:
    """The state of an empty sequence; sampling above temperature 0 depends on the seed."""
    return fold(_SEED, (sampling.seed,)) if sampling.temperature > 0 else _SEED


def token_of(state: int, position: int, vocab: int, pattern: tuple[int, ...]) -> int:
    """The token that follows a sequence in this state, at this position of the output."""
    if pattern:
        return pattern[position % len(pattern)]
    mixed = ((state ^ (state >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    return (mixed >> 17) % vocab


def embed(request: str, first: int, tokens: Iterable[int], width: int) -> Floats:
    """Hidden rows `[tokens, width]` of stage 0's input: whole numbers that float32 holds exactly, and
    that tell request, position and token."""
    ids = np.fromiter(tokens, dtype=np.uint64)
    positions = np.arange(first, first + len(ids), dtype=np.uint64)
    mark = np.uint64(zlib.crc32(request.encode()))
    mixed = (mark + positions * np.uint64(2654435761) + ids * np.uint64(40503)) & np.uint64(0xFFFF)
    columns = np.arange(width, dtype=np.float32)
    return (mixed.astype(np.float32)[:, None] + columns[None, :]).astype(np.float32)
