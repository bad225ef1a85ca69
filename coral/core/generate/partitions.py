"""Partitions of n nodes into S non-empty groups, as restricted-growth strings."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int8]
Masks = NDArray[np.int32]


@cache
def partitions(nodes: int, groups: int) -> tuple[Labels, Masks]:
    """`labels[p, i]` is the group of node i, `masks[p, b]` the nodes of group b as bits.

    Labels are first used in the order 0, 1, …: each partition occurs once. Where nodes i-1 and i are equal, a
    caller may keep only those with labels[i-1] ≤ labels[i].
    """
    strings: list[tuple[int, ...]] = [()]
    for _ in range(nodes):
        strings = [(*s, v) for s in strings for v in range(min(max(s, default=-1) + 2, groups))]
    labels = np.array([s for s in strings if max(s) == groups - 1], np.int8).reshape(-1, nodes)
    masks = np.zeros((len(labels), groups), np.int32)
    for i in range(nodes):
        masks[np.arange(len(labels)), labels[:, i]] |= 1 << i
    return labels, masks
