"""All multisets of up to N node types within a memory limit, by size, in the order of their rank.

A multiset x_0 ≤ x_1 ≤ … of n of k types has rank Σ_i C(x_i + i, i + 1); the ranks of size n are 0 …
C(k+n-1, n) - 1. So a sub-multiset is found by arithmetic, without a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.kernel import kernel
from coral.types.program import Floats, Ints

Rows = NDArray[np.int16]
"""`[rows, size]`: node types of each multiset, sorted within."""

MAX_NODES = 10


def binomials(types: int) -> Ints:
    """`[x, k]` = C(x, k) for all that a rank of up to `MAX_NODES` of `types` types needs."""
    rows = types + MAX_NODES + 1
    return np.array([[comb(x, k) for k in range(MAX_NODES + 2)] for x in range(rows)], np.int64)


def ranks(types: int, size: int) -> int:
    """How many multisets of `size` of `types` types there are."""
    return comb(types + size - 1, size)


def count_within(weight: Floats, limit: float, max_nodes: int) -> int:
    """How many multisets of 1..`max_nodes` types weigh at most `limit`; `weight[type]` ≥ 0."""
    sizes = range(1, max_nodes + 1) if len(weight) else ()
    return sum(_count(weight, limit, size) for size in sizes)


def within(weight: Floats, limit: float, size: int) -> tuple[Rows, Ints]:
    """The multisets of `size` types that weigh at most `limit`, and their ranks, ascending."""
    found = _count(weight, limit, size)
    rows, at = np.empty((found, size), np.int16), np.empty(found, np.int64)
    _fill(weight, limit, rows, at)
    return rows, at


@kernel
def _next(members: NDArray[np.int16], types: int) -> bool:
    """The multiset that follows in rank; False after the last."""
    size = members.shape[0]
    for i in range(size):
        if members[i] < (members[i + 1] if i + 1 < size else types - 1):
            members[i] += 1
            members[:i] = 0
            return True
    return False


@kernel
def _weight(members: NDArray[np.int16], weight: Floats) -> float:
    total = 0.0
    for i in range(members.shape[0]):
        total += weight[members[i]]
    return total


@kernel
def _count(weight: Floats, limit: float, size: int) -> int:
    members = np.zeros(size, np.int16)
    found = 0
    more = True
    while more:
        found += _weight(members, weight) <= limit
        more = _next(members, weight.shape[0])
    return found


@kernel
def _fill(weight: Floats, limit: float, rows: Rows, at: Ints) -> None:
    members = np.zeros(rows.shape[1], np.int16)
    found, rank = 0, 0
    while found < rows.shape[0]:
        if _weight(members, weight) <= limit:
            rows[found] = members
            at[found] = rank
            found += 1
        rank += 1
        _next(members, weight.shape[0])


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


def best_without(rows: Rows, smaller: Floats, binomial: Ints) -> Floats:
    """For each row the best of `smaller`, by rank, among it less one node; 0 for rows of one node."""
    best = np.zeros(len(rows))
    if rows.shape[1] > 1:
        _best_without(rows, smaller, binomial, best)
    return best


@kernel
def _best_without(rows: Rows, smaller: Floats, binomial: Ints, best: Floats) -> None:
    size = rows.shape[1]
    for x in range(rows.shape[0]):
        members = rows[x]
        for i in range(size):
            if i == 0 or members[i] != members[i - 1]:
                best[x] = max(best[x], smaller[rank_without(members, size, i, binomial)])


def best_split(rows: Rows, totals: Sequence[Floats], binomial: Ints) -> Floats:
    """For each row the most that a split of its nodes into two gives, V(A) + V(B).

    `totals[k]` is V, by rank, of the multisets of size k + 1.
    """
    best = np.zeros(len(rows))
    if rows.shape[1] > 1:
        offsets = np.concatenate([[0], np.cumsum([len(total) for total in totals])]).astype(np.int64)
        _best_split(rows, np.concatenate(totals), offsets, binomial, best)
    return best


@kernel
def _best_split(rows: Rows, totals: Floats, offsets: Ints, binomial: Ints, best: Floats) -> None:
    size = rows.shape[1]
    everyone = (1 << size) - 1
    for x in range(rows.shape[0]):
        for mask in range(1, everyone, 2):
            count = 0
            for i in range(size):
                count += mask >> i & 1
            here = totals[offsets[count - 1] + rank_of_mask(rows[x], size, mask, binomial)]
            rest = totals[offsets[size - count - 1] + rank_of_mask(rows[x], size, everyone ^ mask, binomial)]
            best[x] = max(best[x], here + rest)
