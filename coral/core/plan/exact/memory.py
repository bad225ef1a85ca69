"""What one solve leaves for the next: row prices, columns and covers that mattered, the last solution.

Any prices give a valid bound, any columns may be looked at first, a cover is used again only where it still
serves its demand and a solution only where it holds: nothing that is remembered can make an answer wrong;
programs that are alike are only solved sooner.
"""

from __future__ import annotations

from msgspec import Struct

from coral.core.plan.exact.decomposition import Blocks, Whole
from coral.types.program import Floats, Ints, Program

MOST = 8


class Remembered(Struct, frozen=True, kw_only=True, eq=False):
    prices: Floats
    columns: Ints
    wholes: tuple[Whole, ...] = ()
    x: Floats | None = None

    def still(self, blocks: Blocks) -> list[Whole]:
        """The covers that serve their demands as these are now, at their costs of now."""
        return [
            blocks.whole_of(one.row, one.columns, one.counts)
            for one in self.wholes
            if one.row < len(blocks.covers) and blocks.serves(one.row, one.columns, one.counts)
        ]


class Memory:
    """Of programs with as many rows and columns the last one."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], Remembered] = {}

    def recall(self, program: Program) -> Remembered | None:
        return self._last.get((program.rows, program.columns))

    def keep(self, program: Program, remembered: Remembered) -> None:
        key = (program.rows, program.columns)
        if key not in self._last and len(self._last) >= MOST:
            del self._last[next(iter(self._last))]
        self._last[key] = remembered
