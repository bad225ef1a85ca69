"""Exact placement: the best throughput t* of every multiset of nodes at a given number of stages S.

Fix a partition of the nodes into S groups B, and which group F is first and which Z is last. With
f_B(j) = Σ_{g ∈ B} T̂_j(g), from the table of the group's role (non-increasing in j),

    t* = min( min_B f_B(1),  L-th largest value of the union over B of { f_B(j) : 1 ≤ j ≤ L } )

because t is feasible iff every group holds at least one layer at rate ≥ t and Σ_B #{j : f_B(j) ≥ t} ≥ L.
(L layers, j layers held, T̂_j(g) node g's throughput; the paper's §4.1 solves an ILP for it.)

Search: multisets in blocks of growing size. The incumbent of X at S is the best of X minus one node (one
more node never lowers a stage). A choice of partition, F and Z is evaluated only if the layers that its
groups hold *strictly above* the incumbent reach L; a table that bounds all roles throws out most
partitions first. Equal nodes are not permuted. In the restricted-growth strings that are kept among
equal nodes, labels ascend, which loses no partition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.combinations import Block, rank_without
from coral.core.generate.kernel import kernel
from coral.core.generate.partitions import Labels, Masks
from coral.types.program import Floats, Ints

FIRST, MID, LAST, ONLY, BOUND = 0, 1, 2, 3, 4
"""Rows of a rate array `[role, L, type]`; BOUND is the elementwise greatest of first, mid and last."""

Witness = NDArray[np.int32]
"""`[rows, 3]`: partition, first group, last group; -1 where the best is that of a sub-multiset."""


@kernel
def group_rate(rate: Floats, role: int, j: int, members: NDArray[np.int16], mask: int) -> float:
    """f_B(j + 1) of the group of `members` in `mask`."""
    total = 0.0
    for i in range(members.shape[0]):
        if mask >> i & 1:
            total += rate[role, j, members[i]]
    return total


@kernel
def layers_above(rate: Floats, role: int, members: NDArray[np.int16], mask: int, t: float) -> int:
    """#{j : f_B(j) > t}."""
    low, high = 0, rate.shape[1]
    while low < high:
        middle = (low + high) // 2
        if group_rate(rate, role, middle, members, mask) > t:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def best_rate(
    rate: Floats,
    members: NDArray[np.int16],
    masks: NDArray[np.int32],
    roles: Ints,
    held: Ints,
    current: Floats,
) -> float:
    """t* of one partition, with the role of each group. `held` and `current` are room to work in."""
    layers = rate.shape[1]
    groups = masks.shape[0]
    least = np.inf
    for b in range(groups):
        held[b] = 0
        current[b] = group_rate(rate, roles[b], 0, members, masks[b])
        least = min(least, current[b])
    value = 0.0
    for _ in range(layers):
        best = 0
        for b in range(1, groups):
            if current[b] > current[best]:
                best = b
        value = current[best]
        held[best] += 1
        if held[best] < layers:
            current[best] = group_rate(rate, roles[best], held[best], members, masks[best])
        else:
            current[best] = -1.0
    return min(value, least)


@kernel
def reach(
    rate: Floats,
    members: NDArray[np.int16],
    masks: NDArray[np.int32],
    roles: Ints,
    t: float,
    known: Ints,
    counts: Ints,
    epoch: int,
) -> int:
    """Layers that the groups hold above t in their roles; -1 where a group holds none.

    `counts[role, mask]` is valid where `known[role, mask] == epoch`: the same t and members.
    """
    total = 0
    for b in range(masks.shape[0]):
        role, mask = roles[b], masks[b]
        if known[role, mask] != epoch:
            counts[role, mask] = layers_above(rate, role, members, mask, t)
            known[role, mask] = epoch
        if counts[role, mask] == 0:
            return -1
        total += counts[role, mask]
    return total


@kernel
def distinct(members: NDArray[np.int16], labels: NDArray[np.int8]) -> bool:
    """Whether labels ascend among equal nodes: of partitions that differ by equal nodes, one is kept."""
    for i in range(1, members.shape[0]):
        if members[i] == members[i - 1] and labels[i - 1] > labels[i]:
            return False
    return True


@kernel
def solve_rows(
    rows: Block,
    low: int,
    high: int,
    stages: int,
    rate: Floats,
    valid: NDArray[np.bool_],
    smaller: Floats,
    labels: Labels,
    masks: Masks,
    binomial: Ints,
    best: Floats,
    witness: Witness,
) -> None:
    """Fill `best` and `witness` for rows `[low, high)` of one block at S = `stages`.

    `rate[role, L, type]`; `smaller[rank]` is the best of the multisets with one node less, at the same S.
    """
    size = rows.shape[1]
    layers = rate.shape[1]
    counts = np.zeros((5, 1 << size), np.int64)
    known = np.zeros((5, 1 << size), np.int64)
    bound = np.full(stages, BOUND if stages > 1 else ONLY, np.int64)
    roles = np.full(stages, ONLY, np.int64)
    held = np.zeros(stages, np.int64)
    current = np.zeros(stages, np.float64)
    epoch = 0
    for x in range(low, high):
        witness[x, 0] = -1
        if not valid[x]:
            continue
        epoch += 1
        members = rows[x]
        incumbent = 0.0
        if stages < size:
            for i in range(size):
                if i == 0 or members[i] != members[i - 1]:
                    incumbent = max(incumbent, smaller[rank_without(members, size, i, binomial)])
        for p in range(masks.shape[0]):
            if not distinct(members, labels[p]):
                continue
            if reach(rate, members, masks[p], bound, incumbent, known, counts, epoch) < layers:
                continue
            for f in range(stages):
                for z in range(stages):
                    if stages > 1:
                        if f == z:
                            continue
                        for b in range(stages):
                            roles[b] = FIRST if b == f else LAST if b == z else MID
                    if reach(rate, members, masks[p], roles, incumbent, known, counts, epoch) < layers:
                        continue
                    found = best_rate(rate, members, masks[p], roles, held, current)
                    if found > incumbent:
                        incumbent = found
                        witness[x, 0], witness[x, 1], witness[x, 2] = p, f, z
                        epoch += 1
        best[x] = incumbent
