"""Models whose layers alternate between a sliding window and full attention: the worst run of layers.

A node's table knows how many layers it holds, not which. What it costs and holds is therefore taken as the
worst over all positions `[a, a + j)`: the run with the most full layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coral.types.model import ModelShape


@cache
def worst_full_layers(windows: tuple[int, ...], layers: int) -> NDArray[np.int64]:
    """`[layers + 1]`: the most layers with full attention in any run of j consecutive ones."""
    if not windows:
        return np.arange(layers + 1)
    full = np.concatenate([[0], np.cumsum([window == 0 for window in windows])])
    return np.array([int((full[j:] - full[: len(full) - j]).max()) for j in range(layers + 1)])


def window_of(shape: ModelShape) -> int:
    """The widest sliding window of the model; 0 where every layer has full attention."""
    return max(shape.windows, default=0)


def layer_tokens(shape: ModelShape, held: Callable[[float], float]) -> NDArray[np.float64]:
    """`[layers + 1]`: layer-tokens of KV that j layers hold, at the worst position.

    `held(cap)` is what a full layer holds where no sequence may hold more than `cap` tokens (inf: no cap).
    """
    full = worst_full_layers(shape.windows, shape.layers)
    window = window_of(shape)
    capped = held(float(window)) if window else 0.0
    return full * held(float("inf")) + (np.arange(shape.layers + 1) - full) * capped
