"""Exact placement where stages share the latency SLO freely: Σ of their budgets ≤ ℓ instead of ℓ/S each.

Beyond the paper. The SLO is cut into K units; a stage of k units is given k/K of it, and T̂ᵏ_j(g) is what
node g does with j layers within that (non-decreasing in k, non-increasing in j). At fixed t a group B
with k units can hold m_B(k) = #{j : Σ_{g ∈ B} T̂ᵏ_j(g) > t} layers, so a partition reaches more than t iff

    max { Σ_B m_B(k_B) : Σ_B k_B ≤ K, every m_B(k_B) ≥ 1, one group in the role first, another last } ≥ L,

a small knapsack. Its answer's budgets and roles have an exact t* of their own (as in `closed_form`), which
is the new t, until nothing reaches L. The search starts from the best that ℓ/S each gives, so it is never
worse, and with the partition that gave it.

Before the knapsack, partitions are passed over by Lagrange: with any price λ of a unit, one that reaches L
has Σ_B max_k (m_B(k) − λ·k) ≥ L − λ·K. First over the table that bounds all roles, then with the best pair of
groups in the roles first and last. What that leaves of slack bounds the units that the knapsack has to try.
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

PRICES = (0.4, 0.7, 1.0, 1.4, 2.2)
"""λ in multiples of L/K, so that λ·K is this many times L."""
CLOSE = 1e-6
"""Layers are whole: what rounding may make of a sum of less than so many prices."""


@kernel
def ascends(members: NDArray[np.int16], labels: NDArray[np.int8]) -> bool:
    """As `closed_form.distinct`: of partitions that differ by equal nodes, one is kept."""
    for i in range(1, members.shape[0]):
        if members[i] == members[i - 1] and labels[i - 1] > labels[i]:
            return False
    return True


@kernel
def layers_by_units(
    free: Floats,
    role: int,
    members: NDArray[np.int16],
    mask: int,
    t: float,
    held: NDArray[np.int32],
    worth: Floats,
) -> None:
    """`held[k]` = m_B(k), k = 0 … K-1 units, and `worth[i]` = max_k (m_B(k) − λ_i·k) where m_B(k) ≥ 1."""
    units, layers = free.shape[0] + 1, free.shape[2]
    chosen = np.zeros(members.shape[0], np.int64)
    count = 0
    for i in range(members.shape[0]):
        if mask >> i & 1:
            chosen[count] = members[i]
            count += 1
    worth[:] = -np.inf
    j = 0
    held[0] = 0
    for k in range(1, units):
        while j < layers:
            rate = 0.0
            for i in range(count):
                rate += free[k - 1, role, j, chosen[i]]
            if rate <= t:
                break
            j += 1
        held[k] = j
        if j:
            for i in range(len(PRICES)):
                worth[i] = max(worth[i], j - PRICES[i] * layers / units * k)


@kernel
def may_reach(worth: Floats, of: Ints, layers: int) -> bool:
    """Whether Lagrange allows the groups `of` all layers, in the roles that serve best; `worth[group, i]`."""
    for i in range(len(PRICES)):
        total = 0.0
        for b in range(of.shape[0]):
            total += worth[of[b], i]
        if total < layers * (1 - PRICES[i]) - CLOSE:
            return False
    return True


@kernel
def slack_with_roles(worth: Floats, of: Ints, layers: int) -> tuple[float, int]:
    """As `may_reach` with one group first and another last: by how much the bound is above L at the price
    where that is least, and which; negative where L cannot be reached. `worth[role, group, i]`."""
    groups = of.shape[0]
    least, price = np.inf, 0
    for i in range(len(PRICES)):
        middle, empty = 0.0, 0
        for b in range(groups):
            if worth[MID, of[b], i] > -np.inf:
                middle += worth[MID, of[b], i]
            else:
                empty += 1
        best = -np.inf
        for f in range(groups):
            for z in range(groups):
                if z == f:
                    continue
                total = middle + worth[FIRST, of[f], i] + worth[LAST, of[z], i]
                left = empty
                for b in (f, z):
                    if worth[MID, of[b], i] > -np.inf:
                        total -= worth[MID, of[b], i]
                    else:
                        left -= 1
                if left == 0:
                    best = max(best, total)
        above = best - layers * (1 - PRICES[i]) + CLOSE
        if above < least:
            least, price = above, i
    return least, price


@kernel
def most_layers_with_roles(
    held: NDArray[np.int32],
    worth: Floats,
    of: Ints,
    layers: int,
    slack: float,
    price: int,
    best: NDArray[np.int32],
    took: NDArray[np.int32],
    gave: NDArray[np.int32],
) -> int:
    """The knapsack: `held[role, group, k]`; `took` and `gave` are to read the answer from.

    Units that cost a group more than `slack` of its worth at the price are in no answer that reaches L.
    """
    units = held.shape[2]
    groups = of.shape[0]
    cost = PRICES[price] * layers / units
    best[: groups + 1] = -1
    best[0, NOBODY, : units + 1] = 0
    for b in range(groups):
        for role in range(3):
            given = ONLY_FIRST if role == FIRST else ONLY_LAST if role == LAST else NOBODY
            for q in range(1, units):
                m = held[role, of[b], q]
                if m == 0 or worth[role, of[b], price] - (m - cost * q) > slack:
                    continue
                for state in range(4):
                    if state & given:
                        continue
                    after = state | given
                    for k in range(q, units + 1):
                        before = best[b, state, k - q]
                        if before >= 0 and before + m > best[b + 1, after, k]:
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
    worth = np.zeros((5, masks_of, len(PRICES)), np.float64)
    table = np.zeros((size + 1, 4, units + 1), np.int32)
    took = np.zeros((size + 1, 4, units + 1), np.int32)
    gave = np.zeros((size + 1, 4, units + 1), np.int32)
    of = np.zeros(size, np.int64)
    roles = np.zeros(size, np.int64)
    budget = np.zeros(size, np.int64)
    last = start[min(size, most_stages, layers)]
    epoch = 0
    for x in range(rows.shape[0]):
        members = rows[x]
        epoch += 1
        for at in range(start[1] - 1, last):
            p = witness[x, 0] if at < start[1] else at  # first the one that ℓ/S each is best with
            if p < start[1] or not ascends(members, labels[p]):
                continue
            stages = 2
            while p >= start[stages]:
                stages += 1
            for b in range(stages):
                of[b] = masks[p, b]
            while True:
                for b in range(stages):
                    if known[BOUND, of[b]] != epoch:
                        layers_by_units(
                            free, BOUND, members, of[b], best[x], held[BOUND, of[b]], worth[BOUND, of[b]]
                        )
                        known[BOUND, of[b]] = epoch
                if not may_reach(worth[BOUND], of[:stages], layers):
                    break
                for b in range(stages):
                    for role in (FIRST, MID, LAST):
                        if known[role, of[b]] != epoch:
                            layers_by_units(
                                free, role, members, of[b], best[x], held[role, of[b]], worth[role, of[b]]
                            )
                            known[role, of[b]] = epoch
                slack, price = slack_with_roles(worth, of[:stages], layers)
                if slack < 0:
                    break
                most = most_layers_with_roles(
                    held, worth, of[:stages], layers, slack, price, table, took, gave
                )
                if most < layers:
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
