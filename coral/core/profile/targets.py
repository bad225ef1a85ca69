"""Latency targets: what a pipeline may aim at within its SLO.

A request holds KV for as long as it is in the pipeline, so by Little's law (`throughput`) a pipeline that
takes all of a long SLO ℓ has more of them in flight than one that is content with less: where memory
binds, the first serves fewer. Nobody is obliged to use all of ℓ, so T̂ is made for every target ℓ' of a
ladder, and for ℓ itself; all nodes of a template aim at one of them, the one that serves most.

The ladder is the same for every SLO. So what an SLO on it allows, every longer one allows: T never falls.
From an SLO between two rungs to a longer one before the next it may fall, by no more than their ratio.
"""

from __future__ import annotations

from collections.abc import Sequence

from coral.types.model import Phase, Slo

DECADE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
COARSE = (1.0, 2.0, 5.0)
"""Of the time to first token where phases are mixed: decode is most of what a request takes there."""
LEAST_S = 1e-3


def targets(slo: Slo, phase: Phase) -> list[Slo]:
    """The SLO itself, then what is below it, longest first."""
    prefill = [slo.prefill_s] if phase == "decode" else rungs(slo.prefill_s, _ladder(phase))
    decode = [slo.decode_s] if phase == "prefill" else rungs(slo.decode_s, DECADE)
    return [
        Slo(prefill_s=first, decode_s=each, percentile=slo.percentile) for first in prefill for each in decode
    ]


def rungs(limit_s: float, decade: Sequence[float]) -> list[float]:
    """`limit_s`, and the rungs below it down to `LEAST_S`."""
    found = [round(digit * 10.0**power, 9) for power in range(-3, 5) for digit in decade]
    return [limit_s, *sorted((rung for rung in found if LEAST_S <= rung < limit_s), reverse=True)]


def _ladder(phase: Phase) -> Sequence[float]:
    return COARSE if phase == "mixed" else DECADE
