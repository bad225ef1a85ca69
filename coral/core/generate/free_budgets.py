"""Exact placement where stages share the latency SLO freely: Σ of their budgets ≤ ℓ instead of ℓ/S each.

Beyond the paper. The SLO is cut into K units; a stage of k units is given k/K of it, and T̂ᵏ_j(g) is what
node g does with j layers within that (non-decreasing in k, non-increasing in j). At fixed t a group B
with k units can hold m_B(k) = #{j : Σ_{g ∈ B} T̂ᵏ_j(g) > t} layers, so a partition reaches more than t iff

    max { Σ_B m_B(k_B) : Σ_B k_B ≤ K, every m_B(k_B) ≥ 1, one group in the role first, another last } ≥ L,

a small knapsack. Its answer's budgets and roles have an exact t* of their own (as in `closed_form`), which
is the new t, until nothing reaches L. The search starts from the best that ℓ/S each gives, so it is never
worse. Before the knapsack with roles, partitions are passed over

1. by Lagrange with the price L/K of a unit: a feasible one has Σ_B max_k (K·m_B(k) − L·k) ≥ 0;
2. by the knapsack without roles, over the table that bounds them all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.closed_form import BOUND, FIRST, LAST, MID, Witness
from coral.core.generate.combinations import Rows
from coral.core.generate.kernel import kernel
from coral.core.generate.partitions import Labels, Masks
from coral.types.program import Floats, Ints

NOBODY, ONLY_FIRST, ONLY_LAST, BOTH = 0, 1, 2, 3
"""States of the knapsack: which of the roles first and last are given."""


@kernel
def ascends(members: NDArray[np.int16], labels: NDArray[np.int8]) -> bool:
    """As `closed_form.distinct`: of partitions that differ by equal nodes, one is kept."""
    for i in range(1, members.shape[0]):
        if members[i] == members[i - 1] and labels[i - 1] > labels[i]:
            return False
    return True


@kernel
def layers_by_units(
    free: Floats, role: int, members: NDArray[np.int16], mask: int, t: float, out: NDArray[np.int32]
) -> int:
    """`out[k]` = m_B(k), k = 0 … K-1 units; returns max_k (K·m_B(k) − L·k), very small if it holds none."""
    units, layers = free.shape[0] + 1, free.shape[2]
    most = -1 << 40
    held = 0
    out[0] = 0
    for k in range(1, units):
        while held < layers:
            rate = 0.0
            for i in range(members.shape[0]):
                if mask >> i & 1:
                    rate += free[k - 1, role, held, members[i]]
            if rate <= t:
                break
            held += 1
        out[k] = held
        if held:
            most = max(most, units * held - layers * k)
    return most


@kernel
def most_layers(held: NDArray[np.int32], of: Ints, room: NDArray[np.int32]) -> int:
    """The knapsack without roles: the most layers that groups `of` hold with K units; `held[group, k]`."""
    units = held.shape[1]
    room[0, : units + 1] = 0
    for b in range(of.shape[0]):
        now, then = room[b % 2], room[(b + 1) % 2]
        for k in range(units + 1):
            then[k] = -1
            for q in range(1, min(k, units - 1) + 1):
                m = held[of[b], q]
                if m > 0 and now[k - q] >= 0 and now[k - q] + m > then[k]:
                    then[k] = now[k - q] + m
    return int(room[of.shape[0] % 2, units])


@kernel
def most_layers_with_roles(
    held: NDArray[np.int32],
    of: Ints,
    best: NDArray[np.int32],
    took: NDArray[np.int32],
    gave: NDArray[np.int32],
) -> int:
    """The knapsack with roles: `held[role, group, k]`; `took` and `gave` are to read the answer from."""
    units = held.shape[2]
    groups = of.shape[0]
    best[: groups + 1] = -1
    best[0, NOBODY, : units + 1] = 0
    for b in range(groups):
        for state in range(4):
            for role in range(3):
                if role == FIRST:
                    if state & ONLY_FIRST:
                        continue
                    after = state | ONLY_FIRST
                elif role == LAST:
                    if state & ONLY_LAST:
                        continue
                    after = state | ONLY_LAST
                else:
                    after = state
                for k in range(1, units + 1):
                    for q in range(1, min(k, units - 1) + 1):
                        m = held[role, of[b], q]
                        before = best[b, state, k - q]
                        if m > 0 and before >= 0 and before + m > best[b + 1, after, k]:
                            best[b + 1, after, k] = before + m
                            took[b + 1, after, k] = q
                            gave[b + 1, after, k] = role
    return int(best[groups, BOTH, units])


@kernel
def read_answer(
    took: NDArray[np.int32], gave: NDArray[np.int32], roles: Ints, budget: Ints, units: int
) -> None:
    """Roles and units of each group out of the knapsack's tables."""
    state, k = BOTH, units
    for b in range(roles.shape[0], 0, -1):
        roles[b - 1], budget[b - 1] = gave[b, state, k], took[b, state, k]
        k -= budget[b - 1]
        if roles[b - 1] == FIRST:
            state ^= ONLY_FIRST
        elif roles[b - 1] == LAST:
            state ^= ONLY_LAST


@kernel
def rate_with(
    free: Floats, members: NDArray[np.int16], masks: NDArray[np.int32], roles: Ints, budget: Ints
) -> float:
    """t* of a partition with the role and the units of each group: as `closed_form.best_rate`."""
    groups, layers = roles.shape[0], free.shape[2]
    held = np.zeros(groups, np.int64)
    current = np.zeros(groups, np.float64)
    least = np.inf
    value = 0.0
    for step in range(layers + 1):
        best = 0
        for b in range(groups):
            if step == 0:
                for i in range(members.shape[0]):
                    if masks[b] >> i & 1:
                        current[b] += free[budget[b] - 1, roles[b], 0, members[i]]
                least = min(least, current[b])
            elif current[b] > current[best]:
                best = b
        if step == 0:
            continue
        value = current[best]
        held[best] += 1
        current[best] = 0.0 if held[best] < layers else -1.0
        if held[best] < layers:
            for i in range(members.shape[0]):
                if masks[best] >> i & 1:
                    current[best] += free[budget[best] - 1, roles[best], held[best], members[i]]
    return min(value, least)


@kernel
def improve_rows(
    rows: Rows,
    free: Floats,
    most_stages: int,
    labels: Labels,
    masks: Masks,
    start: Ints,
    best: Floats,
    witness: Witness,
    units_of: NDArray[np.int32],
) -> None:
    """Raise `best` of each row where free budgets do better; `units_of[row, group]` stays 0 where not.

    `free[k-1, role, L, type]` for k = 1 … K-1, roles FIRST, MID, LAST and BOUND (in the place of 4).
    """
    size = rows.shape[1]
    units, layers = free.shape[0] + 1, free.shape[2]
    masks_of = 1 << size
    known = np.zeros((5, masks_of), np.int64)
    held = np.zeros((5, masks_of, units), np.int32)
    worth = np.zeros(masks_of, np.int64)
    room = np.zeros((2, units + 1), np.int32)
    table = np.zeros((size + 1, 4, units + 1), np.int32)
    took = np.zeros((size + 1, 4, units + 1), np.int32)
    gave = np.zeros((size + 1, 4, units + 1), np.int32)
    of = np.zeros(size, np.int64)
    roles = np.zeros(size, np.int64)
    budget = np.zeros(size, np.int64)
    epoch = 0
    for x in range(rows.shape[0]):
        members = rows[x]
        epoch += 1
        for stages in range(2, min(size, most_stages, layers) + 1):
            for p in range(start[stages - 1], start[stages]):
                if not ascends(members, labels[p]):
                    continue
                while True:
                    value = 0
                    for b in range(stages):
                        mask = masks[p, b]
                        if known[BOUND, mask] != epoch:
                            worth[mask] = layers_by_units(
                                free, BOUND, members, mask, best[x], held[BOUND, mask]
                            )
                            known[BOUND, mask] = epoch
                        value += worth[mask]
                        of[b] = mask
                    if value < 0 or most_layers(held[BOUND], of[:stages], room) < layers:
                        break
                    for b in range(stages):
                        for role in (FIRST, MID, LAST):
                            if known[role, of[b]] != epoch:
                                layers_by_units(free, role, members, of[b], best[x], held[role, of[b]])
                                known[role, of[b]] = epoch
                    if most_layers_with_roles(held, of[:stages], table, took, gave) < layers:
                        break
                    read_answer(took, gave, roles[:stages], budget[:stages], units)
                    best[x] = rate_with(free, members, masks[p], roles[:stages], budget[:stages])
                    units_of[x, :stages] = budget[:stages]
                    units_of[x, stages:] = 0
                    witness[x, 0] = p
                    for b in range(stages):
                        if roles[b] == FIRST:
                            witness[x, 1] = b
                        elif roles[b] == LAST:
                            witness[x, 2] = b
                    epoch += 1
