"""The inner loops over columns and covers, compiled.

A cover is a multiset of items whose weights T sum to at least 1. On a grid of G steps an item weighs
⌈T G⌉, so what the grid says a cover costs is at most what it does cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coral.core.generate.kernel import kernel
from coral.types.program import Floats, Ints

DEPTH = 48
"""Most items of a cover that is looked for."""


@kernel
def reduced_costs(indptr: Ints, indices: Ints, data: Floats, cost: Floats, prices: Floats) -> Floats:
    """c - Aᵀy, shape (columns,)."""
    out = cost.copy()
    for column in range(len(cost)):
        total = 0.0
        for at in range(indptr[column], indptr[column + 1]):
            total += data[at] * prices[indices[at]]
        out[column] -= total
    return out


@kernel
def cheapest_by_weight(weight: Ints, cost: Floats, free: NDArray[np.bool_], grid: int) -> Ints:
    """Of every weight the cheapest free item that no heavier one undercuts, heaviest first."""
    best = np.full(grid + 1, -1, np.int64)
    for item in range(len(weight)):
        if free[item]:
            at = best[weight[item]]
            if at < 0 or cost[item] < cost[at]:
                best[weight[item]] = item
    found = np.empty(grid + 1, np.int64)
    count = 0
    least = np.inf
    for step in range(grid, 0, -1):
        if best[step] >= 0 and cost[best[step]] < least:
            least = cost[best[step]]
            found[count] = best[step]
            count += 1
    return found[:count]


@kernel
def staircase(weight: Ints, cost: Floats, copies: Ints, grid: int) -> Floats:
    """g[t]: least cost of weights that sum to t or more, for t of 0..grid. `copies` < 0: without end."""
    out = np.full(grid + 1, np.inf)
    out[0] = 0.0
    for step in range(1, grid + 1):
        least = np.inf
        for item in range(len(weight)):
            if copies[item] < 0:
                rest = step - weight[item]
                value = cost[item] + (out[rest] if rest > 0 else 0.0)
                if value < least:
                    least = value
        out[step] = least
    for item in range(len(weight)):
        for _ in range(copies[item]):
            for step in range(grid, 0, -1):
                rest = step - weight[item]
                value = cost[item] + (out[rest] if rest > 0 else 0.0)
                if value < out[step]:
                    out[step] = value
    for step in range(grid - 1, 0, -1):
        out[step] = min(out[step], out[step + 1])
    return out


@kernel
def with_one(weight: Ints, cost: Floats, stairs: Floats, grid: int) -> Floats:
    """Per item the least cost of a cover that has it."""
    out = np.empty(len(weight))
    for item in range(len(weight)):
        rest = grid - weight[item]
        out[item] = cost[item] + (stairs[rest] if rest > 0 else 0.0)
    return out


@kernel
def covers_within(
    share: Floats,
    cost: Floats,
    copies: Ints,
    stairs: Floats,
    grid: int,
    needed: float,
    limit: float,
    most: int,
    effort: int,
    shrink: bool,
) -> tuple[Ints, Floats, bool]:
    """Minimal covers of `needed` (1: the row) that cost at most `limit`: items (n, DEPTH) filled up with
    -1, costs (n,), whether that is all of them. Items must be sorted by `share`, largest first. With
    `shrink` the limit falls to just below every cover found, so that the last one is the cheapest."""
    found = np.full((most, DEPTH), -1, np.int64)
    costs = np.empty(most)
    count = 0
    stack = np.zeros(DEPTH + 1, np.int64)
    need = np.empty(DEPTH + 2)
    paid = np.empty(DEPTH + 2)
    need[0] = needed - 1e-9
    paid[0] = 0.0
    depth = 0
    whole = True
    while depth >= 0:
        effort -= 1
        if effort < 0:
            return found[:count], costs[:count], False
        item = stack[depth]
        if item >= len(share):
            depth -= 1
            if depth >= 0:
                stack[depth] += 1
            continue
        left = need[depth] - share[item]
        total = paid[depth] + cost[item]
        least = total
        if left > 0:
            least += stairs[int(left * grid)]
        inside = least < limit
        if inside and copies[item] >= 0:
            taken = 1
            at = depth - 1
            while at >= 0 and stack[at] == item:
                taken += 1
                at -= 1
            inside = taken <= copies[item]
        if not inside:
            stack[depth] += 1
        elif left <= 0:
            if shrink:
                count = 0
                limit = total - 1e-9 * abs(total) - 1e-12
            if count == most:
                return found[:count], costs[:count], False
            for at in range(DEPTH):
                found[count, at] = stack[at] if at <= depth else -1
            costs[count] = total
            count += 1
            stack[depth] += 1
        elif depth + 1 >= DEPTH:
            whole = False
            stack[depth] += 1
        else:
            depth += 1
            need[depth] = left
            paid[depth] = total
            stack[depth] = item
    return found[:count], costs[:count], whole


@kernel
def together(one: Floats, other: Floats, grid: int) -> Floats:
    """Least cost of covering t with both, a part each; neither costs less for more."""
    out = np.full(grid + 1, np.inf)
    for left in range(grid + 1):
        if left == grid or one[left + 1] > one[left]:  # the most that this cost covers
            for step in range(grid + 1):
                rest = step - left
                value = one[left] + (other[rest] if rest > 0 else 0.0)
                if value < out[step]:
                    out[step] = value
    return out


@kernel
def least_split(one: Floats, other: Floats, grid: int) -> tuple[float, int]:
    """The least cost of covering all with both, where each covers a part, and the part of the first."""
    least, part = np.inf, 0
    for left in range(1, grid):
        value = one[left] + other[grid - left]
        if value < least:
            least, part = value, left
    return least, part


@kernel
def least_with(stairs: Floats, beside: Floats, elsewhere: Floats, grid: int) -> Floats:
    """Per weight of an item in a strand with `stairs` what all the rest of a cover costs at least: the
    strand's other items, `beside` (the cell's other strands), and `elsewhere` for the part that is left."""
    out = np.full(grid + 1, np.inf)
    for part in range(grid + 1):
        rest = grid - part
        if part == 0 or elsewhere[rest + 1] > elsewhere[rest]:  # the most that this cost covers
            fixed = beside[part] + elsewhere[rest]
            if fixed < np.inf:
                for weight in range(grid + 1):
                    left = part - weight
                    value = fixed + (stairs[left] if left > 0 else 0.0)
                    if value < out[weight]:
                        out[weight] = value
    return out


@kernel
def undominated(cost: Floats, usage: Floats) -> NDArray[np.bool_]:
    """Which lines no line before them undercuts in every entry of `usage`; lines sorted by cost."""
    keep = np.zeros(len(cost), np.bool_)
    kept = np.empty(len(cost), np.int64)
    count = 0
    for line in range(len(cost)):
        dominated = False
        for at in range(count):
            other = kept[at]
            worse = True
            for entry in range(usage.shape[1]):
                if usage[other, entry] > usage[line, entry]:
                    worse = False
                    break
            if worse:
                dominated = True
                break
        if not dominated:
            keep[line] = True
            kept[count] = line
            count += 1
    return keep
