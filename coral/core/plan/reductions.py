"""What is left out of the program without loss (MATH §3, a–d). All price-free except where said.

a. *Irreducible*: a template is dropped where a split of its nodes into two others does as well: same nodes,
   same domain, same price, same initialization (that is charged per node). Running ones are kept.
b. *Kept and new*: ν = kept (at most ν′) + new, so that initialization is a cost of new and needs no rows.
c. *Unhostable*: new columns that not even all machines together could carry. Kept ones are never dropped.
d. *Tighten*: T → min(T, d). A row Σ T ν >= d·s with 0 <= s <= 1 that one instance satisfies alone stays
   satisfied by it; fewer fractions of instances look as if they were enough.

Also: more than ⌈d / T⌉ instances of one column are never needed, since no cost is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coral.core.plan.hosting import Hosting
from coral.hookspecs.planner import TemplateTable
from coral.types.program import Floats, Ints

TOLERANCE = 1e-9


def irreducible(table: TemplateTable, *, reduce: bool) -> Ints:
    """Rows of the table that new instances may use."""
    usable = table.throughput > 0
    return np.flatnonzero(usable & table.irreducible if reduce else usable).astype(np.int64)


def most_hosted(usage: NDArray[np.int16], hosting: Hosting, room: Floats) -> Floats:
    """(n,): how many instances of each usage (n, node types) all machines together could carry."""
    takes = usage.astype(np.float64) @ hosting.weights.T
    with np.errstate(divide="ignore"):
        most = np.where(takes > 0, room / np.where(takes > 0, takes, 1.0), np.inf)
    least: Floats = most.min(axis=1, initial=np.inf)
    return np.floor(least + TOLERANCE)


def most_needed(throughput: Floats, demand: float) -> Floats:
    """⌈d / T⌉, at least 1."""
    return np.maximum(np.ceil(demand / throughput - TOLERANCE), 1.0)
