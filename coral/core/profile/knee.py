"""A step cost with a knee, fitted to timed steps: few tokens wait for the weights, many for the arithmetic.

    layer = ((w)^p + (c · tokens)^p)^(1/p)        w: reading a layer's weights, c: computing one token, p ≥ 1

in place of the affine w + c · tokens; p = 1 is the affine cost, p → ∞ a roofline. All other parts are those
of `AffineStepCost`. Residuals are relative, so that short steps count as much as long ones::

    minimise  Σ (predicted / measured − 1)²        all coefficients ≥ 0,  1 ≤ p ≤ 16

`shortfall` adds, for every step, predicted ≥ (1 − shortfall) · measured: a profile that promises little more
than was seen. Those are non-linear constraints, which need a solver for them (the plugin `ipopt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.profile.fit import COEFFICIENTS, fit, terms
from coral.errors import ProfileError
from coral.hookspecs.solver import NonlinearSolver
from coral.types.program import Floats, NonlinearProgram
from coral.types.step import AffineStepCost, Measurement, Measurements, Provenance, StepParts, StepWork

SHARPEST = 16.0
LAYER, TOKEN = COEFFICIENTS.index("layer_s"), COEFFICIENTS.index("token_s")


class KneeStepCost(Struct, frozen=True, kw_only=True):
    """`coral.hookspecs.profiler.StepCost`: `base`, with a knee of sharpness p in its layers."""

    base: AffineStepCost
    sharpness: float

    @property
    def profiler(self) -> str:
        return self.base.profiler

    @property
    def engine(self) -> str:
        return self.base.engine

    @property
    def engine_version(self) -> str:
        return self.base.engine_version

    @property
    def provenance(self) -> Provenance:
        return self.base.provenance

    @property
    def error(self) -> float:
        return self.base.error

    @property
    def kv_token_bytes(self) -> int:
        return self.base.kv_token_bytes

    @property
    def fixed_bytes(self) -> int:
        return self.base.fixed_bytes

    @property
    def elementwise(self) -> bool:
        return True

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        return self.step_parts(work, layers, first=first, last=last, tp=tp).step_s

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        parts = self.base.step_parts(work, layers, first=first, last=last, tp=tp)
        one = knee(self.base.layer_s, self.base.token_s * np.asarray(work.tokens, float), self.sharpness)
        compute: Any = layers * one / tp
        return replace(parts, compute_s=compute if np.ndim(compute) else float(compute))

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        return self.base.weight_bytes(layers, first=first, last=last, tied=tied)


def knee(weights: Any, arithmetic: Any, sharpness: float) -> Any:
    """The p-norm of the two, elementwise; taken of their ratio to the larger, so that nothing overflows."""
    larger = np.maximum(weights, arithmetic)
    smaller = np.minimum(weights, arithmetic)
    share = np.divide(smaller, larger, out=np.zeros_like(larger * 1.0), where=np.asarray(larger) > 0)
    return larger * (1.0 + share**sharpness) ** (1.0 / sharpness)


def fit_knee(
    measured: Measurements,
    gpu: str,
    profiler: str = "engine",
    *,
    shortfall: float | None = None,
    solver: NonlinearSolver | None = None,
) -> KneeStepCost:
    """Fit from the affine solution. `solver` minimises in place of scipy's bounded least squares, and must be
    given where `shortfall` is. `error` of the result is the residual's root mean square.

    Raises ProfileError where the steps are too few or hold no usable times, or the solver finds no fit.
    """
    affine = fit(measured, gpu, profiler)
    problem = KneeProblem(measured.points, affine)
    if solver is None:
        if shortfall is not None:
            raise ProfileError(
                "a fit that may not fall short of its measurements needs a solver for non-linear constraints",
                mend="pip install coral-solver-ipopt, and name it: --solver ipopt",
            )
        found = problem.least_squares()
    else:
        found = problem.solved(solver, shortfall)
    named = problem.coefficients(found)
    error = float(np.sqrt(np.mean(problem.residuals(found) ** 2)))
    return KneeStepCost(base=replace(affine, error=error, **named), sharpness=float(found[-1]))


class KneeProblem:
    """Unknowns: the coefficients that the steps tell, each over its affine value's scale, and p."""

    def __init__(self, points: Sequence[Measurement], affine: AffineStepCost) -> None:
        seconds = np.array([point.seconds for point in points])
        rows: Floats = np.array([terms(point) for point in points], float) / seconds[:, None]
        self.told = np.flatnonzero(rows.any(axis=0))
        self.scale = np.abs(rows[:, self.told]).max(axis=0)
        self.rows = rows[:, self.told] / self.scale
        values = np.array([getattr(affine, COEFFICIENTS[c]) for c in self.told])
        self.start = np.r_[np.maximum(values * self.scale, 1e-3), 2.0]
        """Away from 0, where a coefficient could not find its way back."""
        places = {int(c): k for k, c in enumerate(self.told)}
        self.at = (places[LAYER], places[TOKEN])

    def predicted(self, x: Floats) -> Floats:
        """Predicted over measured, one per step."""
        layer, token = self.at
        others = np.delete(x[:-1], [layer, token])
        rest: Floats = np.delete(self.rows, [layer, token], axis=1) @ others
        bent: Floats = knee(self.rows[:, layer] * x[layer], self.rows[:, token] * x[token], float(x[-1]))
        return rest + bent

    def residuals(self, x: Floats) -> Floats:
        return self.predicted(x) - 1.0

    def slopes(self, x: Floats) -> Floats:
        """d predicted / d x, shape (steps, unknowns)."""
        layer, token = self.at
        p = float(x[-1])
        a, b = self.rows[:, layer] * x[layer], self.rows[:, token] * x[token]
        bent = np.maximum(knee(a, b, p), 1e-300)
        out: Floats = np.c_[self.rows, np.zeros(len(a))]
        out[:, layer] = self.rows[:, layer] * (a / bent) ** (p - 1)
        out[:, token] = self.rows[:, token] * (b / bent) ** (p - 1)
        u, v = (a / bent) ** p, (b / bent) ** p
        logs = [np.where(w > 0, w * np.log(np.maximum(w, 1e-300)), 0.0) for w in (u, v)]
        out[:, -1] = bent * (logs[0] + logs[1]) / p**2
        return out

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        n = len(self.start)
        return np.r_[np.zeros(n - 1), 1.0], np.r_[np.full(n - 1, np.inf), SHARPEST]

    def least_squares(self) -> Floats:
        from scipy.optimize import least_squares

        found = least_squares(self.residuals, self.start, self.slopes, bounds=self.bounds, x_scale="jac")
        return np.asarray(found.x, dtype=np.float64)

    def solved(self, solver: NonlinearSolver, shortfall: float | None) -> Floats:
        lower, upper = self.bounds
        few = np.zeros(0)
        least = few if shortfall is None else np.full(len(self.rows), 1.0 - shortfall)
        program = NonlinearProgram(
            start=self.start,
            lower=lower,
            upper=upper,
            row_lower=least,
            row_upper=np.full(len(least), np.inf),
            objective=lambda x: float(self.residuals(x) @ self.residuals(x)),
            gradient=lambda x: 2.0 * self.residuals(x) @ self.slopes(x),
            rows=lambda x: self.predicted(x) if len(least) else few,
            jacobian=lambda x: self.slopes(x) if len(least) else np.zeros((0, len(x))),
        )
        answer = solver.minimise(program, time_limit_s=30.0)
        if answer.x is None or answer.status not in ("optimal", "feasible"):
            raise ProfileError(
                f"the solver found no fit: {answer.termination}",
                mend="allow a larger shortfall, or fit without one",
            )
        x: Floats = np.clip(answer.x, lower, upper)
        if shortfall is not None and self.predicted(x).min() < 1.0 - shortfall - 1e-4:
            raise ProfileError("the solver's fit falls short of a measurement by more than was allowed")
        return x

    def coefficients(self, x: Floats) -> dict[str, float]:
        values = x[:-1] / self.scale
        return {COEFFICIENTS[c]: float(value) for c, value in zip(self.told, values, strict=True)}
