"""Fit an affine step cost to timed steps of a real engine, by non-negative least squares."""

from __future__ import annotations

import numpy as np

from coral.errors import ProfileError
from coral.types.program import Floats
from coral.types.step import AffineStepCost, Measurement, Measurements

COEFFICIENTS = (
    "overhead_s",
    "layer_s",
    "token_s",
    "attend_s",
    "decode_attend_s",
    "embed_token_s",
    "head_s",
    "logit_row_s",
    "allreduce_s",
    "allreduce_token_s",
)


def terms(point: Measurement) -> tuple[float, ...]:
    """What each coefficient of `AffineStepCost.step_s` is multiplied with in this step."""
    work, layers, tp = point.work, point.layers, point.tp
    attended = work.prefill_context + work.decode_context
    last = 1.0 / tp if point.last else 0.0
    reduced = 2.0 * layers if tp > 1 else 0.0
    return (
        1.0,
        layers / tp,
        layers * work.tokens / tp,
        layers * attended / tp,
        layers * work.decode_context / tp,
        work.tokens if point.first else 0.0,
        last,
        last * work.logit_rows,
        reduced,
        reduced * work.tokens,
    )


def fit(measured: Measurements, gpu: str, profiler: str = "analytic") -> AffineStepCost:
    """Least squares of *relative* residuals, so that short steps count as much as long ones.

    `error` of the result is the residual's root mean square. A coefficient that no step tells apart is 0.
    Raises ProfileError where there are fewer steps than unknowns, or a time is not positive and finite.
    """
    from scipy.optimize import nnls

    seconds = np.array([point.seconds for point in measured.points], float)
    if not seconds.size or not np.all(np.isfinite(seconds)) or seconds.min() <= 0:
        raise ProfileError(
            f"measurements of engine {measured.engine!r} on {gpu!r} hold no usable times",
            mend="every step must take a positive, finite time (the mock engine: give it a `cost`)",
        )
    matrix: Floats = np.array([terms(point) for point in measured.points], float) / seconds[:, None]
    told = np.flatnonzero(matrix.any(axis=0))
    if len(seconds) < len(told):
        raise ProfileError(
            f"{len(seconds)} timed steps of engine {measured.engine!r} are too few for {len(told)} unknowns",
            mend="measure more steps",
        )
    scale = np.abs(matrix[:, told]).max(axis=0)
    solved, _ = nnls(matrix[:, told] / scale, np.ones(len(seconds)))
    values = np.zeros(len(COEFFICIENTS))
    values[told] = solved / scale
    residual = matrix @ values - 1.0
    named = dict(zip(COEFFICIENTS, map(float, values), strict=True))
    return AffineStepCost(
        gpu=gpu,
        profiler=profiler,
        engine=measured.engine,
        engine_version=measured.engine_version,
        provenance="measured",
        error=float(np.sqrt(np.mean(residual**2))),
        layer_bytes=measured.layer_bytes,
        embed_bytes=measured.embed_bytes,
        head_bytes=measured.head_bytes,
        kv_token_bytes=measured.kv_token_bytes,
        fixed_bytes=measured.fixed_bytes,
        **named,
    )
