"""The demand rows of a program: which columns serve one row, and of which others it is independent.

A *cover row* is Σ a_j x_j ≥ b > 0 with a_j > 0 over integer x_j ≥ 0 that cost nothing below 0. Columns
that are fixed count into b. Cover rows are chosen such that no column serves two: all other rows of the
program *link* what serves one row with what serves another.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.check import FEASIBILITY
from coral.types.program import Floats, Ints, Program


class Cover(Struct, frozen=True, kw_only=True, eq=False):
    """`share[i]`: the part of the row that one unit of `columns[i]` serves, at the check's tolerance."""

    row: int
    columns: Ints
    share: Floats


def covers(program: Program) -> tuple[Cover, ...]:
    """The largest rows first; a row that shares a column with a larger one is left to link."""
    lengths = np.diff(program.indptr)
    column = np.repeat(np.arange(program.columns), lengths)
    fixed = program.lower == program.upper
    fit = program.integer & (program.lower == 0) & (program.cost >= 0) & ~fixed
    still = fixed[column]
    given = np.bincount(
        program.indices[still],
        weights=program.data[still] * program.lower[column[still]],
        minlength=program.rows,
    )
    needed = program.row_lower - given
    bad = ~still & ~(fit[column] & (program.data > 0))
    spoilt = np.bincount(program.indices[bad], minlength=program.rows) > 0
    rows = (needed > 1e-3) & np.isfinite(needed) & np.isinf(program.row_upper) & ~spoilt
    inside = rows[program.indices] & ~still
    at, owner, value = program.indices[inside], column[inside], program.data[inside]
    sizes = np.bincount(at, minlength=program.rows)
    order = np.argsort(at, kind="stable")
    ends = np.cumsum(sizes)
    taken = np.zeros(program.columns, dtype=np.bool_)
    found = []
    for row in sorted(np.flatnonzero(rows & (sizes > 0)).tolist(), key=lambda row: (-sizes[row], row)):
        entries = order[ends[row] - sizes[row] : ends[row]]
        columns = owner[entries]
        if taken[columns].any():
            continue
        taken[columns] = True
        least = needed[row] * (1 - FEASIBILITY / max(needed[row], 2 * FEASIBILITY))
        found.append(Cover(row=row, columns=columns, share=np.minimum(value[entries] / least, 1.0)))
    return tuple(found)
