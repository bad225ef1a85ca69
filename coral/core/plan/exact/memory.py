"""What one solve leaves for the next: row prices and the columns that mattered.

Any prices give a valid bound and any columns may be looked at first, so nothing that is remembered can
make an answer wrong; programs that are alike are only solved sooner.
"""

from __future__ import annotations

from msgspec import Struct

from coral.types.program import Floats, Ints, Program


class Remembered(Struct, frozen=True, kw_only=True, eq=False):
    prices: Floats | None
    columns: Ints | None


class Memory:
    """Of programs with as many rows and columns the last one."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], Remembered] = {}

    def recall(self, program: Program) -> Remembered | None:
        return self._last.get((program.rows, program.columns))

    def keep(self, program: Program, prices: Floats, columns: Ints) -> None:
        if len(self._last) > 8:
            self._last.clear()
        self._last[program.rows, program.columns] = Remembered(prices=prices, columns=columns)
