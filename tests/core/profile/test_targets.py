"""What a pipeline may aim at within its SLO."""

from __future__ import annotations

import pytest

from coral.core.profile.targets import COARSE, DECADE, LEAST_S, rungs, targets
from coral.types.model import Phase, Slo


def test_the_slo_comes_first_and_what_is_below_it_follows() -> None:
    assert rungs(0.0022, DECADE) == [0.0022, 0.002, 0.0015, 0.0012, 0.001]
    assert rungs(0.05, COARSE) == [0.05, 0.02, 0.01, 0.005, 0.002, 0.001]
    assert rungs(0.0005, DECADE) == [0.0005]
    assert min(rungs(3600.0, DECADE)) == LEAST_S


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_what_an_slo_on_the_ladder_allows_every_longer_one_allows(phase: Phase) -> None:
    pairs = [(2.0, 0.05), (2.0, 0.061), (2.0, 0.1), (2.1, 0.1), (5.0, 0.1), (5.0, 0.4), (60.0, 2.0)]
    sets = [
        {(one.prefill_s if phase != "decode" else 0.0, one.decode_s if phase != "prefill" else 0.0) for one in
         targets(Slo(prefill_s=prefill, decode_s=decode), phase)}
        for prefill, decode in pairs
    ]  # fmt: skip
    on_ladder = [True, False, True, False, True, True, False]
    for i, short in enumerate(sets):
        for longer in sets[i:]:
            if on_ladder[i]:
                assert short <= longer
    first = targets(Slo(prefill_s=2.1, decode_s=0.061, percentile=0.9), phase)[0]
    assert first == Slo(prefill_s=2.1, decode_s=0.061, percentile=0.9)
