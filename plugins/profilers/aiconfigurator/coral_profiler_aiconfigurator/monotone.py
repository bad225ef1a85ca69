"""Monotone interpolation of what was measured: curves over one quantity, surfaces over two.

Measured times are noisy and fall here and there where the work grows (another kernel is chosen, a wave
fills up, tiles of a few tokens are half empty). Before they are interpolated they are replaced by the
greatest table below them that does not fall along any axis: what is done for more work can be done for
less, by padding. Where the same context is that of many rows instead of one this is taken for granted too:
one long row keeps fewer multiprocessors busy, but steps are full of many. Interpolation is linear between
nodes, so that what it gives does not fall either; beyond the last node times grow in proportion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def below(values: Floats, axis: int) -> Floats:
    """The greatest table that is nowhere above `values` and does not decrease along the axis."""
    found: Floats = np.flip(np.minimum.accumulate(np.flip(values, axis), axis=axis), axis)
    return found


class Curve(Struct, frozen=True, eq=False):
    """Seconds over one quantity; `nodes` ascending and positive."""

    nodes: Floats
    seconds: Floats

    @classmethod
    def through(cls, nodes: Floats, seconds: Floats) -> Curve:
        return cls(nodes, below(seconds, 0))

    def __call__(self, x: Any) -> Any:
        """Constant below the first node, in proportion beyond the last."""
        within = np.interp(x, self.nodes, self.seconds)
        return within * np.maximum(1.0, np.asarray(x) / self.nodes[-1])


class Surface(Struct, frozen=True, eq=False):
    """Seconds over two quantities: rows (from 0 on) and what they attend to together (from 0 on).

    `seconds[i, k]` at `rows[i]` and `attended[k]`; without rows it is 0.
    """

    rows: Floats
    attended: Floats
    seconds: Floats

    @classmethod
    def through(cls, rows: Floats, attended: Floats, seconds: Floats) -> Surface:
        """`rows` and `attended` begin at 1; a row and a column for 0 are put before them."""
        full = np.zeros((len(rows) + 1, len(attended) + 1))
        full[1:, 1:] = seconds
        full[1:, 0] = seconds[:, 0]
        return cls(np.append(0.0, rows), np.append(0.0, attended), below(below(full, 0), 1))

    def __call__(self, rows: Any, attended: Any) -> Any:
        """More rows than the last node: as many times more requests of the same kind."""
        more = np.maximum(1.0, np.asarray(rows) / self.rows[-1])
        longer = np.maximum(1.0, np.asarray(attended) / more / self.attended[-1])
        i, u = _cell(self.rows, rows / more)
        k, v = _cell(self.attended, attended / more)
        t = self.seconds
        low = t[i, k] * (1 - v) + t[i, k + 1] * v
        high = t[i + 1, k] * (1 - v) + t[i + 1, k + 1] * v
        return (low * (1 - u) + high * u) * more * longer


def _cell(nodes: Floats, x: Any) -> tuple[Any, Any]:
    """Index of the node below, and the share of the way to the next one."""
    i = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    return i, np.clip((x - nodes[i]) / (nodes[i + 1] - nodes[i]), 0.0, 1.0)
