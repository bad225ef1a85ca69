"""Build a `Program` in blocks of arrays: variables, rows, entries, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coral.types.program import Floats, Ints, Program

Scalar = TypeVar("Scalar", bound=np.generic)


class ProgramBuilder:
    """A sparse mixed-integer linear program (minimise) in the making.

    `variables` and `rows` add a block and return its indices (shape `(n,)`), which `entries` takes.
    `build` may be called more than once: add rows to what was built and build again.
    """

    def __init__(self) -> None:
        self._cost: list[Floats] = []
        self._lower: list[Floats] = []
        self._upper: list[Floats] = []
        self._integer: list[NDArray[np.bool_]] = []
        self._names: list[str] = []
        self._named = False
        self._row_lower: list[Floats] = []
        self._row_upper: list[Floats] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._columns = 0
        self._rows = 0

    @property
    def columns(self) -> int:
        return self._columns

    @property
    def row_count(self) -> int:
        return self._rows

    def variables(
        self,
        n: int,
        *,
        cost: ArrayLike = 0.0,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        integer: bool = False,
        names: Sequence[str] = (),
    ) -> Ints:
        """Add n variables. `cost`, `lower`, `upper` are one number or n numbers; returns their columns.

        Raises ValueError for a cost that is not finite or a lower bound above its upper bound.
        """
        block_cost = _block(cost, n, "cost")
        low, up = _block(lower, n, "lower"), _block(upper, n, "upper")
        if not np.isfinite(block_cost).all():
            raise ValueError("a variable's cost must be finite")
        if (low > up).any():
            raise ValueError(
                f"variable {int(np.argmax(low > up))} of the block: its bounds exclude all values"
            )
        if names and len(names) != n:
            raise ValueError(f"{len(names)} names for {n} variables")
        self._named = self._named or bool(names)
        self._names.extend(names or [""] * n)
        self._cost.append(block_cost)
        self._lower.append(low)
        self._upper.append(up)
        self._integer.append(np.full(n, integer))
        self._columns += n
        return np.arange(self._columns - n, self._columns, dtype=np.int64)

    def rows(self, n: int, *, lower: ArrayLike = -np.inf, upper: ArrayLike = np.inf) -> Ints:
        """Add n rows `lower <= A x <= upper`; returns their indices."""
        low, up = _block(lower, n, "lower"), _block(upper, n, "upper")
        if (low > up).any():
            raise ValueError(f"row {int(np.argmax(low > up))} of the block: its bounds exclude all values")
        self._row_lower.append(low)
        self._row_upper.append(up)
        self._rows += n
        return np.arange(self._rows - n, self._rows, dtype=np.int64)

    def entries(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        """Add entries of A. The three are broadcast against each other; what meets twice is summed."""
        r, c, v = np.broadcast_arrays(
            np.asarray(rows, dtype=np.int64),
            np.asarray(columns, dtype=np.int64),
            np.asarray(values, dtype=np.float64),
        )
        r, c, v = r.ravel(), c.ravel(), v.ravel()
        if r.size and (r.min() < 0 or r.max() >= self._rows or c.min() < 0 or c.max() >= self._columns):
            raise ValueError("an entry names a row or a variable that has not been added")
        if not np.isfinite(v).all():
            raise ValueError("an entry must be finite")
        self._entries.append((r, c, v))

    def build(self) -> Program:
        """The program as it stands: entries sorted by column, then row; zeros dropped."""
        rows = _join([e[0] for e in self._entries], np.int64)
        columns = _join([e[1] for e in self._entries], np.int64)
        values = _join([e[2] for e in self._entries], np.float64)
        order = np.lexsort((rows, columns))
        rows, columns, values = rows[order], columns[order], values[order]
        if rows.size:
            first = np.flatnonzero(np.r_[True, (np.diff(rows) != 0) | (np.diff(columns) != 0)])
            rows, columns, values = rows[first], columns[first], np.add.reduceat(values, first)
            kept = values != 0.0
            rows, columns, values = rows[kept], columns[kept], values[kept]
        counts = np.bincount(columns, minlength=self._columns)
        return Program(
            cost=_join(self._cost, np.float64),
            indptr=np.r_[0, np.cumsum(counts)].astype(np.int64),
            indices=rows,
            data=values,
            row_lower=_join(self._row_lower, np.float64),
            row_upper=_join(self._row_upper, np.float64),
            lower=_join(self._lower, np.float64),
            upper=_join(self._upper, np.float64),
            integer=_join(self._integer, np.bool_),
            names=tuple(self._names) if self._named else (),
        )


def _block(value: ArrayLike, n: int, what: str) -> Floats:
    array = np.broadcast_to(np.asarray(value, dtype=np.float64), (n,)).copy()
    if np.isnan(array).any():
        raise ValueError(f"{what} holds a value that is not a number")
    return array


def _join(blocks: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(blocks).astype(dtype, copy=False) if blocks else np.zeros(0, dtype=dtype)
