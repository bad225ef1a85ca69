"""All multisets of up to N node types, in blocks by size, each in the order of its combinadic rank.

A multiset x_0 ≤ x_1 ≤ … of n of k types has rank Σ_i C(x_i + i, i + 1); the ranks of size n are 0 …
C(k+n-1, n) - 1. So a sub-multiset is found by arithmetic, without a table.
"""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.kernel import kernel
from coral.types.program import Ints

Block = NDArray[np.int16]

MAX_NODES = 10


def binomials(types: int) -> Ints:
    """`[x, k]` = C(x, k) for all that a rank of up to `MAX_NODES` of `types` types needs."""
    rows = types + MAX_NODES + 1
    return np.array([[comb(x, k) for k in range(MAX_NODES + 2)] for x in range(rows)], np.int64)


def block(types: int, size: int) -> Block:
    """`[C(types + size - 1, size), size]`: all multisets of `size` of `types` types, sorted within."""
    count = comb(types + size - 1, size)
    out = np.empty((count, size), np.int16)
    _unrank(out, types, size, binomials(types))
    return out


@kernel
def _unrank(out: Block, types: int, size: int, binomial: Ints) -> None:
    for row in range(out.shape[0]):
        left = row
        high = types + size - 1
        for i in range(size - 1, -1, -1):
            while binomial[high, i + 1] > left:
                high -= 1
            left -= binomial[high, i + 1]
            out[row, i] = high - i


@kernel
def rank_without(members: NDArray[np.int16], size: int, skip: int, binomial: Ints) -> int:
    """Rank of a sorted multiset less its member number `skip` (-1: none)."""
    rank = 0
    kept = 0
    for i in range(size):
        if i != skip:
            rank += binomial[members[i] + kept, kept + 1]
            kept += 1
    return rank


@kernel
def rank_of_mask(members: NDArray[np.int16], size: int, mask: int, binomial: Ints) -> int:
    """Rank of the members whose bit is set in `mask`."""
    rank = 0
    kept = 0
    for i in range(size):
        if mask >> i & 1:
            rank += binomial[members[i] + kept, kept + 1]
            kept += 1
    return rank
