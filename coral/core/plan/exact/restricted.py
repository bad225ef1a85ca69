"""The small program over what a pool holds, and its answers as answers of the whole program.

A demand whose covers are listed chooses one of them. One whose covers are too many keeps its columns, its
rows, and a cut that says what the decomposition knows of it: at its prices no cover costs less than
the cheapest, Σ c̃_j x_j ≥ least_k. The cut holds for every column of the program, since c̃ is a function of
a column's entries. Demands that several cells may serve get none: there it costs more than it gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coral.core.plan.exact.decomposition import Blocks, Whole, master
from coral.core.plan.exact.pool import Pool
from coral.core.plan.exact.relaxation import select
from coral.types.program import Floats, Ints, Program


class Restricted:
    """Columns: the free ones, then the listed wholes, then single columns of the rows not listed."""

    def __init__(
        self, blocks: Blocks, pool: Pool, reduced: Floats, least: Floats, incumbent: Floats | None
    ) -> None:
        self.blocks = blocks
        self.listed = [row for row, wholes in enumerate(pool.wholes) if wholes is not None]
        self.single = [row for row, wholes in enumerate(pool.wholes) if wholes is None]
        known = _known(blocks, incumbent)
        self.free = pool.free
        if incumbent is not None:
            self.free = np.union1d(pool.free, blocks.free[incumbent[blocks.free] != 0])
        self.wholes: list[Whole] = []
        for row in self.listed:
            listed = {one.key: one for one in pool.wholes[row] or ()}
            if row in known:
                listed.setdefault(known[row].key, known[row])
            self.wholes.extend(listed.values())
        self.columns: Ints = np.zeros(0, dtype=np.int64)
        if self.single:
            picked = [blocks.covers[row].columns[pool.columns[row]] for row in self.single]
            picked += [blocks.covers[row].hidden for row in self.single]
            extra = [known[row].columns for row in self.single if row in known]
            self.columns = np.unique(np.concatenate([*picked, *extra]))
        self.program = self._build(reduced, least)

    def _build(self, reduced: Floats, least: Floats) -> Program:
        blocks, program = self.blocks, self.blocks.program
        base = master(blocks, blocks.part(self.free), self.wholes, dear=None, integer=True)
        if not self.single:
            return base
        keep = np.zeros(program.columns, dtype=np.bool_)
        keep[self.columns] = True
        part = select(program, keep)
        own = np.array([row for cover in self.single for row in blocks.covers[cover].rows], dtype=np.int64)
        number = np.full(program.rows, -1, dtype=np.int64)
        number[blocks.linking] = np.arange(len(blocks.linking))
        number[own] = base.rows + np.arange(len(own))
        cut = np.full(program.columns, -1, dtype=np.int64)
        known = [cover for cover in self.single if len(blocks.covers[cover].cells) == 1]
        for position, cover in enumerate(known):
            cut[blocks.covers[cover].columns] = position
        scale = np.maximum(np.abs(least[known]), 1e-9)
        cuts = cut[self.columns]
        at = np.flatnonzero(cuts >= 0)
        value = reduced[self.columns[at]] / scale[cuts[at]]
        column = np.r_[np.repeat(np.arange(part.columns), np.diff(part.indptr)), at]
        indices = np.r_[number[part.indices], base.rows + len(own) + cuts[at]]
        order = np.lexsort((indices, column))
        sizes = np.bincount(column, minlength=part.columns)
        lower, upper = base.row_lower.copy(), base.row_upper.copy()
        chosen = len(blocks.linking) + np.array(self.single)
        lower[chosen], upper[chosen] = -np.inf, np.inf
        given = _fixed(program)[own]
        return Program(
            cost=np.r_[base.cost, part.cost],
            lower=np.r_[base.lower, part.lower],
            upper=np.r_[base.upper, part.upper],
            integer=np.r_[base.integer, part.integer],
            indptr=np.r_[base.indptr, base.indptr[-1] + np.cumsum(sizes)].astype(np.int64),
            indices=np.r_[base.indices, indices[order]].astype(np.int64),
            data=np.r_[base.data, np.r_[part.data, value][order]],
            row_lower=np.r_[lower, program.row_lower[own] - given, least[known] / scale - 1e-9],
            row_upper=np.r_[upper, program.row_upper[own] - given, np.full(len(known), np.inf)],
        )

    def expand(self, x: Floats) -> Floats:
        """An answer of the small program as one of the whole program."""
        blocks = self.blocks
        out = np.zeros(blocks.program.columns)
        free = len(self.free)
        out[self.free] = x[:free]
        for whole, taken in zip(self.wholes, x[free : free + len(self.wholes)], strict=True):
            if taken > 0.5:
                out[whole.columns] += whole.counts
        out[self.columns] = x[free + len(self.wholes) :]
        return settled(blocks, out)


def settled(blocks: Blocks, x: Floats) -> Floats:
    """x with the parts of every demand as large as its columns make them."""
    for cover in blocks.covers:
        if cover.hidden.size:
            x[cover.hidden] = np.minimum(blocks.most_able(cover, x), blocks.program.upper[cover.hidden])
    return x


def _known(blocks: Blocks, x: Floats | None) -> dict[int, Whole]:
    """The cover of every row in a solution."""
    if x is None:
        return {}
    out = {}
    for row, cover in enumerate(blocks.covers):
        chosen = np.sort(cover.columns[x[cover.columns] > 0.5])
        out[row] = blocks.whole_of(row, chosen, np.round(x[chosen]).astype(np.int64))
    return out


def _fixed(program: Program) -> Floats:
    """What fixed columns give to every row."""
    still = (program.lower == program.upper) & (program.lower != 0)
    return program.activity(np.where(still, program.lower, 0.0)) if still.any() else np.zeros(program.rows)


def chosen_of(blocks: Blocks, wholes: Sequence[Whole], free: Ints) -> Pool:
    """A pool of just these covers."""
    upper = blocks.program.upper
    able = [one for one in wholes if (one.counts <= upper[one.columns]).all()]
    listed = tuple(tuple(one for one in able if one.row == row) for row in range(len(blocks.covers)))
    none = np.zeros(0, dtype=np.int64)
    return Pool(wholes=listed, columns=(none,) * len(blocks.covers), free=free, everything=False)
