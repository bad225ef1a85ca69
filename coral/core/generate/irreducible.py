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

from coral.core.generate.combinations import Rows, rank_of_mask
from coral.core.generate.kernel import kernel
from coral.types.program import Floats, Ints

TOLERANCE = 1e-9
"""Relative: a gain below it is no gain."""


def beats(throughput: Floats, other: Floats) -> NDArray[np.bool_]:
    """Where `throughput` is more than `other`, beyond rounding."""
    better: NDArray[np.bool_] = throughput > other * (1 + TOLERANCE)
    return better


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
