"""The demands of a program: which rows say what must be served, and by which columns.

A *cover row* is Σ a_j x_j ≥ b > 0 with a_j > 0 over integer x_j ≥ 0 that cost nothing below 0. A demand may
also be served in parts f_c ≥ 0, one per *cell*, that cost nothing and occur nowhere else::

    Σ_c f_c ≥ b      Σ_j a_j x_j ≥ f_c    for each *strand* of the cell: prefill and decode, say

Columns that are fixed count into b. Covers are chosen such that no column serves two: all other rows of the
program *link* what serves one demand with what serves another.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.plan.check import FEASIBILITY
from coral.types.program import Floats, Ints, Program

LEAST = 1e-3
"""Demands below are left alone: tolerances would be a large part of them."""


class Strand(Struct, frozen=True, kw_only=True, eq=False):
    """`share[i]`: the part of the demand that one unit of the cover's column `at[i]` serves, at the
    tolerance of the check."""

    at: Ints
    share: Floats


class Cover(Struct, frozen=True, kw_only=True, eq=False):
    """A demand: all strands of a cell must serve the cell's part, and the parts must sum to 1. `rows` and
    `hidden` (the f) are its own, `columns` sorted."""

    rows: tuple[int, ...]
    columns: Ints
    hidden: Ints
    cells: tuple[tuple[Strand, ...], ...]


def covers(program: Program) -> tuple[Cover, ...]:
    """The largest first; one that shares a column with a larger one is left to link."""
    rows = _Rows(program)
    found = [one for one in map(rows.cover, rows.demands()) if one is not None]
    taken = np.zeros(program.columns, dtype=np.bool_)
    chosen = []
    for one in sorted(found, key=lambda one: (-len(one.columns), one.rows)):
        if not taken[one.columns].any():
            taken[one.columns] = True
            chosen.append(one)
    return tuple(chosen)


class _Rows:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.column = np.repeat(np.arange(program.columns), np.diff(program.indptr))
        self.fixed = program.lower == program.upper
        self.serves = program.integer & (program.lower == 0) & (program.cost >= 0) & ~self.fixed
        self.part = ~program.integer & (program.lower == 0) & (program.cost == 0) & ~self.fixed
        still = self.fixed[self.column]
        given = np.bincount(
            program.indices[still],
            weights=program.data[still] * program.lower[self.column[still]],
            minlength=program.rows,
        )
        self.needed = program.row_lower - given
        self.open = np.isfinite(self.needed) & np.isinf(program.row_upper)
        live = ~still
        self.good = live & self.serves[self.column] & (program.data > 0)
        self.parts = live & self.part[self.column]
        self.spoilt = self._any(live & ~self.good & ~self.parts)
        self.has_parts = self._any(self.parts)
        self.has_columns = self._any(self.good)
        candidate = self.open & ~self.spoilt
        keep = np.flatnonzero(candidate[program.indices] & live)
        self.order = keep[np.argsort(program.indices[keep], kind="stable")]
        self.sizes = np.bincount(program.indices[keep], minlength=program.rows)
        self.ends = np.cumsum(self.sizes)
        self.candidate = candidate

    def _any(self, entries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(self.program.indices[entries], minlength=self.program.rows) > 0

    def demands(self) -> list[int]:
        """Rows that ask for something, of columns alone or of parts alone."""
        alone = self.has_parts != self.has_columns
        return np.flatnonzero(self.candidate & alone & (self.needed > LEAST)).tolist()

    def _entries(self, row: int) -> Ints:
        return self.order[self.ends[row] - self.sizes[row] : self.ends[row]]

    def cover(self, row: int) -> Cover | None:
        return self._in_parts(row) if self.has_parts[row] else self._plain(row)

    def _plain(self, row: int) -> Cover:
        at = self._entries(row)
        least = self.needed[row] - FEASIBILITY
        share = np.minimum(self.program.data[at] / least, 1.0)
        strand = Strand(at=np.arange(len(at)), share=share)
        none = np.zeros(0, dtype=np.int64)
        return Cover(rows=(row,), columns=self.column[at], hidden=none, cells=((strand,),))

    def _in_parts(self, row: int) -> Cover | None:
        program = self.program
        rows, hidden, cells = [row], [], []
        drift = FEASIBILITY
        for at in self._entries(row):
            worth, part = program.data[at], int(self.column[at])
            own = slice(program.indptr[part], program.indptr[part + 1])
            others = [
                (int(r), -v) for r, v in zip(program.indices[own], program.data[own], strict=True) if r != row
            ]
            if worth <= 0 or not others or worth * program.upper[part] < self.needed[row] - FEASIBILITY:
                return None
            strands = []
            for other, taken in others:
                if not self.candidate[other] or taken <= 0 or abs(self.needed[other]) > 1e-12:
                    return None
                entries = self._entries(other)
                entries = entries[self.column[entries] != part]
                if self.parts[entries].any():
                    return None
                strands.append((self.column[entries], program.data[entries] * worth / taken))
                drift += FEASIBILITY * worth / taken
                rows.append(other)
            hidden.append(part)
            cells.append(strands)
        return self._joined(tuple(rows), hidden, cells, self.needed[row] - drift)

    def _joined(
        self, rows: tuple[int, ...], hidden: list[int], cells: list[list[tuple[Ints, Floats]]], least: float
    ) -> Cover | None:
        every = np.concatenate([columns for cell in cells for columns, _ in cell])
        columns = np.unique(every)
        if len(columns) < len(every) or least <= 0:  # a column that serves two parts
            return None
        return Cover(
            rows=rows,
            columns=columns,
            hidden=np.array(hidden, dtype=np.int64),
            cells=tuple(
                tuple(
                    Strand(at=np.searchsorted(columns, own), share=np.minimum(value / least, 1.0))
                    for own, value in cell
                )
                for cell in cells
            ),
        )
