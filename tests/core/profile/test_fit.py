"""The fit finds the coefficients that made the times."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest

from coral.core.profile.fit import COEFFICIENTS, fit
from coral.errors import ProfileError
from coral.types.step import AffineStepCost, Measurement, Measurements, StepWork

TRUE = AffineStepCost(
    gpu="cpu",
    engine="e",
    engine_version="2",
    provenance="measured",
    error=0.0,
    overhead_s=1.5e-3,
    layer_s=4e-4,
    token_s=1.1e-4,
    attend_s=2e-8,
    embed_token_s=3e-6,
    head_s=5e-3,
    logit_row_s=1.4e-3,
)


def measured(noise: float = 0.0, *, roles: bool = True) -> Measurements:
    rng = np.random.default_rng(0)
    points = []
    for (prompt, rows), context, layers, role in product(
        [(0, 1), (0, 8), (32, 0), (128, 4), (16, 16)], [64, 512], [2, 6], [(0, 0), (1, 0), (0, 1), (1, 1)]
    ):
        work = StepWork(
            prefill_tokens=prompt,
            prefill_context=prompt * context / 2,
            decode_rows=rows,
            decode_context=rows * context,
            logit_rows=rows + (prompt > 0),
        )
        first, last = bool(role[0]), bool(role[1])
        if not roles and (first or last):
            continue
        seconds = TRUE.step_s(work, layers, first=first, last=last) * (1 + noise * rng.standard_normal())
        points.append(Measurement(work=work, layers=layers, first=first, last=last, seconds=seconds))
    return Measurements(
        engine="e",
        engine_version="2",
        device="cpu",
        points=tuple(points),
        fixed_bytes=7,
        layer_bytes=11,
        embed_bytes=13,
        head_bytes=17,
        kv_token_bytes=19,
    )


def test_exact_times_give_the_coefficients_back() -> None:
    found = fit(measured(), "cpu")
    for name in COEFFICIENTS:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6, abs=1e-15), name
    assert found.error < 1e-9
    assert (found.engine, found.engine_version, found.provenance) == ("e", "2", "measured")
    sizes = (found.fixed_bytes, found.layer_bytes, found.embed_bytes, found.head_bytes, found.kv_token_bytes)
    assert sizes == (7, 11, 13, 17, 19)


def test_noise_is_stated_as_the_error_and_nothing_is_negative() -> None:
    found = fit(measured(noise=0.05), "cpu")
    assert 0.03 < found.error < 0.07
    assert all(getattr(found, name) >= 0 for name in COEFFICIENTS)
    assert found.token_s == pytest.approx(TRUE.token_s, rel=0.15)
    assert found.logit_row_s == pytest.approx(TRUE.logit_row_s, rel=0.25)


def test_what_no_step_tells_apart_is_zero() -> None:
    found = fit(measured(roles=False), "cpu")
    assert found.head_s == found.logit_row_s == found.embed_token_s == found.allreduce_s == 0
    assert found.token_s == pytest.approx(TRUE.token_s, rel=1e-6)


def test_too_few_steps_and_times_of_nothing_are_refused() -> None:
    whole = measured()
    with pytest.raises(ProfileError, match="too few"):
        fit(msgspec.structs.replace(whole, points=whole.points[3:6]), "cpu")
    still = tuple(msgspec.structs.replace(point, seconds=0.0) for point in whole.points)
    with pytest.raises(ProfileError, match="no usable times"):
        fit(msgspec.structs.replace(whole, points=still), "cpu")
