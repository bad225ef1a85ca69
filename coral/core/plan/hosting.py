"""Which nodes fit on which machines: the rows that say so exactly, without a variable per machine.

A *sliced* node takes k GPUs of a machine and shares it; a *whole* one takes a machine of just its size.
Sliced sizes are powers of two, so each divides the next. For every size s that occurs::

    Σ_{k ≥ s} k · n_k  ≤  Σ_c  s · ⌊G_c / s⌋ · N_c        n_k nodes of size k, N_c machines of G_c GPUs

Necessary: nodes of size ≥ s are multiples of s, so a machine of G GPUs holds at most s·⌊G/s⌋ of their
GPUs. Sufficient: fill largest first; when a node of size s finds no machine, every machine holds nothing
but nodes ≥ s and has less than s left, so the left side already equals the right one. This holds for
any G (3, 6, 10), so no variable per (size, machine type) is needed. A single total-GPU row would be
wrong; sizes larger than every machine get a row with 0 on the right, so such nodes are never free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from coral.core.plan.supply import Lot
from coral.types.hardware import NodeType
from coral.types.program import Floats


class Use(Struct, frozen=True, kw_only=True):
    """A way to use a lot's machines: sliced (several nodes each) or whole (one node each)."""

    lot: int
    sliced: bool


class Hosting(Struct, frozen=True, kw_only=True, eq=False):
    """Rows of one site: `weights @ n <= capacity @ N`.

    weights (rows, node types): what a node takes. capacity (rows, uses): what a machine gives.
    sizes (rows,): the node type that each row is of.
    """

    weights: Floats
    capacity: Floats
    uses: tuple[Use, ...]
    sizes: tuple[NodeType, ...]

    def room(self, lots: Sequence[Lot], *, held_only: bool = False) -> Floats:
        """(rows,): capacity if all machines (or all held ones) were used in every way at once."""
        limits = [lots[u.lot].limit if lots[u.lot].held or not held_only else 0 for u in self.uses]
        return self.capacity @ np.array(limits, dtype=np.float64)


def hosting(node_types: Sequence[NodeType], lots: Sequence[Lot], *, slices: bool) -> Hosting:
    """The rows for nodes of `node_types` on machines of `lots`, all in one site."""
    weights: list[list[float]] = []
    givers: list[dict[Use, float]] = []
    uses: dict[Use, None] = {}
    named: list[NodeType] = []
    for gpu in sorted({t.gpu for t in node_types}):
        sizes = sorted({t.count for t in node_types if t.gpu == gpu})
        for size in sizes:
            sliced = slices and is_power_of_two(size)
            row = [
                float((t.count if sliced else 1) if _counts(t, gpu, size, sliced) else 0) for t in node_types
            ]
            given: dict[Use, float] = {}
            for index, lot in enumerate(lots):
                fits = lot.gpus >= size if sliced else lot.gpus == size
                if lot.gpu == gpu and fits:
                    given[Use(lot=index, sliced=sliced)] = float(size * (lot.gpus // size) if sliced else 1)
            weights.append(row)
            named.append(NodeType(gpu, size))
            givers.append(given)
            uses.update(dict.fromkeys(given))
    order = tuple(uses)
    capacity = np.array([[given.get(use, 0.0) for use in order] for given in givers], dtype=np.float64)
    return Hosting(
        weights=np.array(weights, dtype=np.float64).reshape(len(weights), len(node_types)),
        capacity=capacity.reshape(len(weights), len(order)),
        uses=order,
        sizes=tuple(named),
    )


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _counts(node_type: NodeType, gpu: str, size: int, sliced: bool) -> bool:
    if node_type.gpu != gpu:
        return False
    return node_type.count >= size and is_power_of_two(node_type.count) if sliced else node_type.count == size
