"""Exact placement: the best throughput t* of every multiset of nodes, over all numbers of stages S.

Fix a partition of the nodes into S groups B, and which group F is first and which Z is last. With
f_B(j) = Σ_{g ∈ B} T̂_j(g), from the table of the group's role (non-increasing in j),

    t* = min( min_B f_B(1),  L-th largest value of the union over B of { f_B(j) : 1 ≤ j ≤ L } )

because t is feasible iff every group holds at least one layer at rate ≥ t and Σ_B #{j : f_B(j) ≥ t} ≥ L.
(L layers, j layers held, T̂_j(g) node g's throughput; the paper's §4.1 solves an ILP for it.)

Search, with the best of X less one node as the incumbent t (one more node never lowers a stage):

1. S is passed over where even a perfect balance cannot beat t: a group that holds j layers at rate ≥ t
   has j·t ≤ Σ_{g ∈ B} w(g) with w(g) = max_j j·T̂_j(g), so t* ≤ Σ_g w(g) / L.
2. A partition is passed over where its groups hold fewer than L layers *strictly above* t by the table
   that bounds all roles.
3. Of the pairs F ≠ Z, the one with the most layers strictly above t is evaluated exactly if they reach L;
   its t* > t is the new incumbent, until no pair reaches L. (With m, a, z layers as mid, first, last a
   pair has Σ_B m_B − (m_F − a_F) − (m_Z − z_Z).)

Equal nodes are not permuted: in the restricted-growth strings that are kept among equal nodes, labels
ascend, which loses no partition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.combinations import Rows
from coral.core.generate.kernel import kernel
from coral.core.generate.partitions import Labels, Masks
from coral.types.program import Floats, Ints

FIRST, MID, LAST, ONLY, BOUND = 0, 1, 2, 3, 4
"""Rows of a rate array `[role, L, type]`; BOUND is the elementwise greatest of first, mid and last."""

Witness = NDArray[np.int32]
"""`[rows, 3]`: partition, first group, last group; -1 where the best is that of a sub-multiset."""

SLACK = 1 + 1e-12
"""A bound is a sum in another order than the value it bounds: what rounding may make of that."""


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
    """t* of one partition into groups with these `roles`. `held` and `current` are room to work in."""
    layers = rate.shape[1]
    groups = roles.shape[0]
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
    stages: int,
    role: int,
    t: float,
    known: Ints,
    counts: Ints,
    epoch: int,
) -> int:
    """Layers that the groups hold above t in one role, all told; -1 where a group holds none.

    `counts[role, mask]` is valid where `known[role, mask] == epoch`: the same t, table and members.
    """
    total = 0
    for b in range(stages):
        mask = masks[b]
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
def balanced(work: Floats, members: NDArray[np.int16], layers: int) -> float:
    """No placement of the members has a greater throughput: Σ_g w(g) / L."""
    total = 0.0
    for i in range(members.shape[0]):
        total += work[members[i]]
    return total / layers * SLACK


@kernel
def best_pair(
    rate: Floats,
    members: NDArray[np.int16],
    masks: NDArray[np.int32],
    stages: int,
    t: float,
    known: Ints,
    counts: Ints,
    epoch: int,
) -> tuple[int, int, int]:
    """(layers, F, Z) of the pair that holds the most layers strictly above t; layers -1 where in every
    pair a group holds none."""
    middle, empty = 0, 0
    for b in range(stages):
        for role in range(3):
            if known[role, masks[b]] != epoch:
                counts[role, masks[b]] = layers_above(rate, role, members, masks[b], t)
                known[role, masks[b]] = epoch
        middle += counts[MID, masks[b]]
        empty += counts[MID, masks[b]] == 0
    most, first, last = -1, 0, 0
    for f in range(stages):
        a, m_f = counts[FIRST, masks[f]], counts[MID, masks[f]]
        if a == 0:
            continue
        for z in range(stages):
            of_last, m_z = counts[LAST, masks[z]], counts[MID, masks[z]]
            if z == f or of_last == 0 or empty - (m_f == 0) - (m_z == 0) > 0:
                continue
            total = middle - m_f - m_z + a + of_last
            if total > most:
                most, first, last = total, f, z
    return most, first, last


@kernel
def solve_rows(
    rows: Rows,
    incumbent: Floats,
    rate: Floats,
    work: Floats,
    labels: Labels,
    masks: Masks,
    start: Ints,
    best: Floats,
    witness: Witness,
) -> None:
    """Fill `best` and `witness` for `rows`, each with its incumbent.

    `rate[S-1, role, L, type]`; `work[S-1, type]` = w; `labels`, `masks`, `start` of `partitions(size)`.
    """
    size = rows.shape[1]
    layers = rate.shape[2]
    counts = np.zeros((5, 1 << size), np.int64)
    known = np.zeros((5, 1 << size), np.int64)
    roles = np.zeros(size, np.int64)
    held = np.zeros(size, np.int64)
    current = np.zeros(size, np.float64)
    epoch = 0
    for x in range(rows.shape[0]):
        members = rows[x]
        t = incumbent[x]
        witness[x, 0] = -1
        for stages in range(1, min(size, rate.shape[0], layers) + 1):
            if balanced(work[stages - 1], members, layers) <= t:
                continue
            of = rate[stages - 1]
            epoch += 1
            bound = BOUND if stages > 1 else ONLY
            for p in range(start[stages - 1], start[stages]):
                if not distinct(members, labels[p]):
                    continue
                if reach(of, members, masks[p], stages, bound, t, known, counts, epoch) < layers:
                    continue
                if stages == 1:
                    roles[0] = ONLY
                    t = best_rate(of, members, masks[p], roles[:1], held, current)
                    witness[x, 0], witness[x, 1], witness[x, 2] = p, 0, 0
                    epoch += 1
                    continue
                while True:
                    most, first, last = best_pair(of, members, masks[p], stages, t, known, counts, epoch)
                    if most < layers:
                        break
                    roles[:stages] = MID
                    roles[first], roles[last] = FIRST, LAST
                    t = best_rate(of, members, masks[p], roles[:stages], held, current)
                    witness[x, 0], witness[x, 1], witness[x, 2] = p, first, last
                    epoch += 1
        best[x] = t
