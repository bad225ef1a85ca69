"""Which multisets are worth keeping: not matched by a smaller one, nor by a split into two.

X is *dominated* if X less one node does as well; *reducible* if some split (A, B) of its nodes gives
V(A) + V(B) ≥ T(X), where V is the best total throughput of any partition into templates: the same nodes,
in the same domain, at the same charges. A reducible template is never needed by a plan, except where it
is running already. (`combinations` has the best of a multiset less one node, and of its splits.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coral.types.program import Floats

TOLERANCE = 1e-9
"""Relative: a gain below it is no gain."""


def beats(throughput: Floats, other: Floats) -> NDArray[np.bool_]:
    """Where `throughput` is more than `other`, beyond rounding."""
    better: NDArray[np.bool_] = throughput > other * (1 + TOLERANCE)
    return better
