"""Objectives that are too small or too large for a solver's absolute tolerances."""

from __future__ import annotations

import math

import numpy as np

from coral.types.program import Floats

TYPICAL = 16.0
"""What a cost should be about: solvers compare reduced costs with 1e-7 and objectives with 1e-6, CBC with
more. It called 2356 optimal where 2392 was, for an objective of about 2e-3."""
LARGEST = 1e9


def objective_scale(cost: Floats) -> float:
    """A power of two to multiply costs by, so that no digit is lost: 1 where the costs are well sized.

    It takes the geometric mean of the costs that are not 0 to about `TYPICAL`, the largest to `LARGEST` at
    most. An objective, a bound or a dual of the scaled program is that of the program times this.
    """
    sizes = np.abs(cost[cost != 0.0])
    if not sizes.size:
        return 1.0
    typical = float(np.log2(sizes).mean())
    if 2.0**-2 <= 2.0**typical <= 2.0**12:
        return 1.0
    exponent = math.log2(TYPICAL) - typical
    return float(2.0 ** round(min(exponent, math.log2(LARGEST) - math.log2(float(sizes.max())))))
