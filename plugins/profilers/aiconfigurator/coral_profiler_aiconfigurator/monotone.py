"""Monotone interpolation of what was measured: curves over one quantity, surfaces over two.

Measured times are noisy and fall here and there where the work grows (another kernel is chosen, a wave
fills up). Before they are interpolated, a curve is made non-decreasing by the mean of the least
non-decreasing curve above it and the greatest one below it, a surface by the greatest one below it:
attention does fall where the same context is that of many rows instead of one, which fill more
multiprocessors, and where the same rows are one prompt instead of many of a few tokens, which leave tiles
half empty; usual steps are many rows and long prompts, and those stay as they were measured.
Interpolation is linear between nodes, so that what it gives is non-decreasing too; beyond the last node
times grow in proportion.
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


def isotonic(values: Floats) -> Floats:
    """Non-decreasing; values that are so already stay as they are."""
    middle: Floats = (np.maximum.accumulate(values) + below(values, 0)) / 2.0
    return middle


class Curve(Struct, frozen=True, eq=False):
    """Seconds over one quantity; `nodes` ascending and positive."""

    nodes: Floats
    seconds: Floats

    @classmethod
    def through(cls, nodes: Floats, seconds: Floats) -> Curve:
        return cls(nodes, isotonic(seconds))

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
