"""Which multisets are worth keeping: not matched by a smaller one, nor by a split into two.

X is *dominated* if X less one node does as well; *reducible* if some split (A, B) of its nodes gives
V(A) + V(B) ≥ T(X), where V is the best total throughput of any partition into templates: the same nodes,
in the same domain, at the same charges. A reducible template is never needed by a plan, except where it
is running already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.combinations import Block, rank_of_mask, rank_without
from coral.core.generate.kernel import kernel
from coral.types.program import Floats, Ints

TOLERANCE = 1e-9
"""Relative: a gain below it is no gain."""


def undominated(rows: Block, throughput: Floats, smaller: Floats, binomial: Ints) -> NDArray[np.bool_]:
    """Rows that do better than each of them less one node; `smaller[rank]` is those's throughput."""
    keep = np.zeros(len(rows), np.bool_)
    _undominated(rows, throughput, smaller, binomial, TOLERANCE, keep)
    return keep


def irreducible(
    rows: Block, throughput: Floats, totals: Sequence[Floats], binomial: Ints
) -> tuple[NDArray[np.bool_], Floats]:
    """Which rows no split matches, and V of every row.

    `totals[k]` is V, by rank, of the multisets of size k + 1.
    """
    size = rows.shape[1]
    offsets = np.concatenate([[0], np.cumsum([len(total) for total in totals])]).astype(np.int64)
    keep = np.zeros(len(rows), np.bool_)
    total = np.zeros(len(rows))
    flat = np.concatenate([*totals, np.zeros(1)])
    _irreducible(rows, size, throughput, flat, offsets, binomial, TOLERANCE, keep, total)
    return keep, total


@kernel
def _undominated(
    rows: Block,
    throughput: Floats,
    smaller: Floats,
    binomial: Ints,
    tolerance: float,
    keep: NDArray[np.bool_],
) -> None:
    size = rows.shape[1]
    for x in range(rows.shape[0]):
        best = 0.0
        if size > 1:
            for i in range(size):
                best = max(best, smaller[rank_without(rows[x], size, i, binomial)])
        keep[x] = throughput[x] > best * (1 + tolerance)


@kernel
def _irreducible(
    rows: Block,
    size: int,
    throughput: Floats,
    totals: Floats,
    offsets: Ints,
    binomial: Ints,
    tolerance: float,
    keep: NDArray[np.bool_],
    total: Floats,
) -> None:
    everyone = (1 << size) - 1
    for x in range(rows.shape[0]):
        best = 0.0
        for mask in range(1, everyone, 2):
            count = 0
            for i in range(size):
                count += mask >> i & 1
            here = totals[offsets[count - 1] + rank_of_mask(rows[x], size, mask, binomial)]
            rest = totals[offsets[size - count - 1] + rank_of_mask(rows[x], size, everyone ^ mask, binomial)]
            best = max(best, here + rest)
        keep[x] = throughput[x] > best * (1 + tolerance)
        total[x] = max(best, throughput[x])
