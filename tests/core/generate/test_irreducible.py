"""Domination and reducibility against their definitions, by enumeration."""

from __future__ import annotations

import itertools

import numpy as np

from coral.core.generate.search import Search, search
from tests.core.generate.placement_case import brute_force, random_rates


def test_flags_are_what_they_say() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        types, nodes, layers = 3, 4, 4
        rate = random_rates(rng, 2, layers, types)
        found = search(Search(rate=rate, memory_bytes=np.ones(types), memory_limit=4.0, max_nodes=nodes))
        sets = [
            s for n in range(1, nodes + 1) for s in itertools.combinations_with_replacement(range(types), n)
        ]
        best = {s: brute_force(rate, s) for s in sets}
        value: dict[tuple[int, ...], float] = {}
        for s in sets:
            splits = [_split(s, mask) for mask in range(1, (1 << len(s)) - 1)]
            value[s] = max([best[s], *(value[a] + value[b] for a, b in splits)])
        kept = {tuple(np.repeat(np.arange(types), u).tolist()): i for i, u in enumerate(found.usage)}
        for s in sets:
            smaller = max(
                (max(best[s[:i] + s[i + 1 :]], 0.0) for i in range(len(s)) if len(s) > 1), default=0.0
            )
            assert (s in kept) == (_above(best[s], smaller))
            if s in kept:
                splits = [_split(s, mask) for mask in range(1, (1 << len(s)) - 1)]
                matched = max((value[a] + value[b] for a, b in splits), default=0.0)
                assert bool(found.irreducible[kept[s]]) == _above(best[s], matched)


def test_combinations_beyond_the_memory_ratio_are_left_out() -> None:
    rate = np.ones((3, 4, 3, 2))
    found = search(Search(rate=rate, memory_bytes=np.array([1.0, 4.0]), memory_limit=5.0, max_nodes=3))
    assert found.combinations == 5  # a, aa, aaa, b, ab
    assert (found.usage @ np.array([1.0, 4.0]) <= 5.0).all()


def _above(better: float, worse: float) -> bool:
    return better > worse * (1 + 1e-9)


def _split(s: tuple[int, ...], mask: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a = tuple(x for i, x in enumerate(s) if mask >> i & 1)
    return a, tuple(x for i, x in enumerate(s) if not mask >> i & 1)
