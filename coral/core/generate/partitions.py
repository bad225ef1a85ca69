"""Partitions of n nodes into non-empty groups, as restricted-growth strings."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from coral.types.program import Ints

Labels = NDArray[np.int8]
Masks = NDArray[np.int32]


@cache
def partitions(nodes: int) -> tuple[Labels, Masks, Ints]:
    """All partitions, by number of groups: those of S groups lie in `[start[S-1], start[S])`.

    `labels[p, i]` is the group of node i, `masks[p, b]` the nodes of group b as bits (0 beyond the last
    group). Labels are first used in the order 0, 1, …: each partition occurs once. Where nodes i-1 and i
    are equal, a caller may keep only those with labels[i-1] ≤ labels[i].
    """
    strings: list[tuple[int, ...]] = [()]
    for _ in range(nodes):
        strings = [(*s, v) for s in strings for v in range(max(s, default=-1) + 2)]
    strings.sort(key=max)  # stable: by number of groups, else in their order
    labels = np.array(strings, np.int8).reshape(-1, nodes)
    masks = np.zeros((len(labels), nodes), np.int32)
    for i in range(nodes):
        masks[np.arange(len(labels)), labels[:, i]] |= 1 << i
    start = np.searchsorted(labels.max(axis=1), np.arange(nodes + 1)).astype(np.int64)
    return labels, masks, start
