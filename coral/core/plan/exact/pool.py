"""Which covers and which columns a solution below a limit can use, and no more.

At prices y with bound L(y), a solution that costs less than L(y) + δ uses for every demand row k a
cover of reduced cost below least_k + δ. Where no row is the worse for an instance less (`shrinks`), the
covers may be taken minimal, and of two that do the same work one that takes no less of any row and costs
no less is not needed.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.plan.exact.decomposition import Blocks, Decomposed, Whole
from coral.types.program import Floats, Ints


class Pool(Struct, frozen=True, kw_only=True, eq=False):
    """Per cover row either all covers that matter (`wholes[k]`) or, where they are too many, its columns."""

    wholes: tuple[tuple[Whole, ...] | None, ...]
    columns: tuple[Ints, ...]
    """Per cover row the positions of its columns that matter."""
    free: Ints
    """The free columns that matter."""
    everything: bool
    """Whether nothing that a solution might use is left out."""

    @property
    def listed(self) -> bool:
        return all(one is not None for one in self.wholes)

    @property
    def size(self) -> int:
        return sum(
            len(columns) if wholes is None else len(wholes)
            for wholes, columns in zip(self.wholes, self.columns, strict=True)
        )


class Prospect:
    """Covers and columns at the best prices, asked for at one limit after another."""

    def __init__(self, blocks: Blocks, decomposed: Decomposed, reduced: Floats) -> None:
        self.blocks, self.decomposed = blocks, decomposed
        self.reduced = [reduced[cover.columns] for cover in blocks.covers]
        self.excess = [
            pricer.with_each(own) - least
            for pricer, own, least in zip(blocks.pricers, self.reduced, decomposed.least, strict=True)
        ]
        """Per column: what the cheapest cover that has it costs above the cheapest of all, at least."""
        program, free = blocks.program, blocks.free
        may_go = program.integer[free] & (program.lower[free] == 0)
        self.free_excess = np.where(may_go, reduced[free], -np.inf)
        self.shrinks = [_shrinks(blocks, row) for row in range(len(blocks.covers))]

    def pool(self, delta: float, *, most: int, kept: int) -> Pool:
        """List covers of a row where there are at most `most`, and `kept` of them after comparison."""
        wholes: list[tuple[Whole, ...] | None] = []
        columns = []
        for row, excess in enumerate(self.excess):
            columns.append(np.flatnonzero(excess <= delta))
            wholes.append(self._wholes(row, delta, most, kept) if self.shrinks[row] else None)
        return Pool(
            wholes=tuple(wholes),
            columns=tuple(columns),
            free=self.blocks.free[self.free_excess <= delta],
            everything=all((one <= delta).all() for one in (self.free_excess, *self.excess)),
        )

    def nearest(self, most: int) -> Pool:
        """Of every strand the columns of least excess, `most` of them."""
        columns = []
        for cover, excess in zip(self.blocks.covers, self.excess, strict=True):
            strands = [strand.at for cell in cover.cells for strand in cell]
            picked = [at[np.argsort(excess[at], kind="stable")[:most]] for at in strands]
            columns.append(np.sort(np.concatenate(picked)))
        return Pool(
            wholes=(None,) * len(columns), columns=tuple(columns), free=self.blocks.free, everything=False
        )

    def _wholes(self, row: int, delta: float, most: int, kept: int) -> tuple[Whole, ...] | None:
        limit = float(self.decomposed.least[row]) + delta
        found = self.blocks.pricers[row].within(self.reduced[row], limit, most)
        return None if found is None else _compared(self.blocks, row, found, kept)


def _shrinks(blocks: Blocks, row: int) -> bool:
    """Whether one unit less of any of the row's columns never breaks a linking row."""
    program = blocks.program
    columns = blocks.covers[row].columns
    lengths = np.diff(program.indptr)[columns]
    entries = np.repeat(program.indptr[columns] - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(
        lengths.sum()
    )
    at, value = program.indices[entries], program.data[entries]
    links = ~np.isin(at, blocks.covers[row].rows)
    at, value = at[links], value[links]
    fine = np.where(value > 0, np.isinf(program.row_lower[at]), np.isinf(program.row_upper[at]))
    return bool(fine.all())


def _compared(blocks: Blocks, row: int, items: Ints, kept: int) -> tuple[Whole, ...] | None:
    """The covers that may be part of a solution and that no other replaces; None where they exceed `kept`."""
    from coral.core.plan.exact.kernels import undominated

    program, cover = blocks.program, blocks.covers[row]
    n = len(items)
    if n == 0:
        return ()
    line, depth = np.nonzero(items >= 0)
    columns = cover.columns[items[line, depth]]
    cost: Floats = np.bincount(line, weights=program.cost[columns], minlength=n).astype(np.float64)
    lengths = np.diff(program.indptr)[columns]
    entries = np.repeat(program.indptr[columns] - np.r_[0, np.cumsum(lengths)[:-1]], lengths) + np.arange(
        lengths.sum()
    )
    at, lines = program.indices[entries], np.repeat(line, lengths)
    touched = np.setdiff1d(np.unique(at), cover.rows)
    number = np.full(program.rows, -1)
    number[touched] = np.arange(len(touched))
    links = number[at] >= 0
    usage = np.zeros((n, len(touched)))
    np.add.at(usage, (lines[links], number[at[links]]), program.data[entries[links]])
    fits = _fits(blocks, touched, usage) & _within_limits(program.upper[cover.columns], items)
    signed: Floats = usage * np.where(np.isinf(program.row_lower[touched]), 1.0, -1.0)
    order = np.flatnonzero(fits)
    order = order[np.lexsort((signed[order].sum(axis=1), cost[order]))]
    order = order[undominated(cost[order], signed[order])]
    if len(order) > kept:
        return None
    wholes = []
    for one in order:
        chosen, counts = np.unique(items[one][items[one] >= 0], return_counts=True)
        wholes.append(blocks.whole_of(row, cover.columns[chosen], counts))
    return tuple(wholes)


def _fits(blocks: Blocks, rows: Ints, usage: Floats) -> NDArray[np.bool_]:
    """Covers that alone exceed a row which no free column relieves are in no solution."""
    program = blocks.program
    relieved = np.zeros(program.rows, dtype=np.bool_)
    relieved[blocks.relieved] = True
    alone = ~relieved[rows]
    over = (usage > program.row_upper[rows] + 1e-6) & (program.row_lower[rows] == -np.inf)
    exceeded: NDArray[np.bool_] = (over & alone).any(axis=1)
    return ~exceeded


def _within_limits(upper: Floats, items: Ints) -> NDArray[np.bool_]:
    """Covers that use no column more often than it may be used; equal items lie side by side."""
    out = np.ones(len(items), dtype=np.bool_)
    run = np.ones(len(items))
    for depth in range(items.shape[1]):
        some = items[:, depth] >= 0
        if not some.any():
            continue
        if depth:
            run = np.where(items[:, depth] == items[:, depth - 1], run + 1, 1.0)
        out &= ~(some & (run > upper[np.maximum(items[:, depth], 0)]))
    return out
