"""Random throughput tables and the placement of nodes by enumeration, to check exact answers against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from coral.core.generate.templates import Found
from coral.types.program import Floats


def random_rates(rng: np.random.Generator, stages: int, layers: int, types: int) -> Floats:
    """`[S, role, L, type]`, non-increasing in layers, with ties, zeros and a dependence on S."""
    shape = (stages, 4, layers, types)
    rate = rng.uniform(0.2, 5, (stages, 4, 1, types)) * -np.sort(-rng.uniform(0, 1, shape), axis=2)
    if rng.random() < 0.4:
        rate = np.round(rate * 4)  # many ties
    holds = rng.integers(0, layers + 1, (stages, 4, 1, types))
    rate = np.where(np.arange(1, layers + 1)[:, None] > holds, 0.0, rate)
    if rng.random() < 0.3:
        rate[:, :3] = rate[:, 1:2]  # roles alike
    if rng.random() < 0.4:
        rate = np.minimum.accumulate(rate, axis=0)  # tighter budgets
    return np.ascontiguousarray(rate)


def random_budget_rates(rng: np.random.Generator, units: int, layers: int, types: int) -> Floats:
    """`[K-1, role, L, type]`: as `random_rates`, and non-decreasing in the units of the SLO."""
    rate = np.maximum.accumulate(random_rates(rng, units - 1, layers, types), axis=0)
    rate[:, 3] = 0.0
    return np.ascontiguousarray(rate)


def brute_force(rate: Floats, members: tuple[int, ...], free: Floats | None = None) -> float:
    """The greatest throughput over all S, node labels, layer compositions, and compositions of the SLO."""
    best = 0.0
    for stages, groups, counts in _placements(len(rate), rate.shape[2], members):
        roles = [3] if stages == 1 else [0, *[1] * (stages - 2), 2]
        each = [
            rate[stages - 1, role, count - 1, held].sum()
            for role, held, count in zip(roles, groups, counts, strict=True)
        ]
        best = max(best, min(each))
        if free is None or stages == 1:
            continue
        by_units = np.array(
            [
                free[:, role, count - 1][:, held].sum(axis=1)
                for role, held, count in zip(roles, groups, counts, strict=True)
            ]
        )
        units = len(free) + 1
        for cuts in itertools.combinations(range(1, units), stages - 1):
            best = max(best, by_units[np.arange(stages), np.diff((0, *cuts, units)) - 1].min())
    return best


def best_of_subsets(found: Found, members: tuple[int, ...]) -> float:
    """What a search says of `members`: rows that a smaller set of nodes matches are not kept."""
    types = found.usage.shape[1]
    known = dict(zip(map(tuple, found.usage.tolist()), found.throughput.tolist(), strict=True))
    subsets = {s for n in range(1, len(members) + 1) for s in itertools.combinations(members, n)}
    usages = [tuple(np.bincount(s, minlength=types).tolist()) for s in subsets]
    return max((known[usage] for usage in usages if usage in known), default=0.0)


def _placements(
    most: int, layers: int, members: tuple[int, ...]
) -> Iterator[tuple[int, list[list[int]], list[int]]]:
    for stages in range(1, min(len(members), layers, most) + 1):
        for labels in itertools.product(range(stages), repeat=len(members)):
            if len(set(labels)) < stages:
                continue
            groups = [
                [m for m, label in zip(members, labels, strict=True) if label == s] for s in range(stages)
            ]
            for cuts in itertools.combinations(range(1, layers), stages - 1):
                yield stages, groups, np.diff((0, *cuts, layers)).tolist()
