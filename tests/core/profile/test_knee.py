from __future__ import annotations

import numpy as np
import pytest

from coral.core.profile.engine import build
from coral.core.profile.fit import fit
from coral.core.profile.grid import WorkGrid, step_grid
from coral.core.profile.knee import KneeProblem, KneeStepCost, fit_knee, knee
from coral.core.profile.options import EngineProfilerOptions
from coral.errors import ProfileError
from coral.hookspecs.profiler import Profiler
from coral.hookspecs.solver import NonlinearSolver
from coral.testing.profiler import ProfilerContract
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.program import Floats, NonlinearProgram, Solution
from coral.types.step import AffineStepCost, Measurement, Measurements, StepWork

BASE = AffineStepCost(
    gpu="g",
    engine="torch",
    engine_version="1",
    provenance="measured",
    error=0.0,
    overhead_s=2e-3,
    layer_s=1e-3,
    token_s=8e-6,
    attend_s=2e-9,
    embed_token_s=1e-6,
    head_s=2e-3,
    logit_row_s=5e-5,
    layer_bytes=1000,
    embed_bytes=300,
    head_bytes=300,
    kv_token_bytes=16,
    fixed_bytes=77,
)
TRUE = KneeStepCost(base=BASE, sharpness=6.0)


def works() -> list[StepWork]:
    rows = [StepWork(decode_rows=n, decode_context=64 * n, logit_rows=n) for n in (1, 4, 16, 64, 128, 256)]
    far = [StepWork(decode_rows=8, decode_context=8 * 4096, logit_rows=8)]
    prompts = [
        StepWork(prefill_tokens=n, prefill_context=n * n / 2, logit_rows=1) for n in (32, 128, 512, 2048)
    ]
    return [*rows, *far, *prompts]


def measured(noise: float = 0.0, seed: int = 0) -> Measurements:
    random = np.random.default_rng(seed)
    points = tuple(
        Measurement(
            work=work,
            layers=layers,
            first=first,
            last=last,
            seconds=TRUE.step_s(work, layers, first=first, last=last)
            * (1 + noise * random.standard_normal()),
        )
        for work in works()
        for layers, first, last in ((2, False, False), (6, False, False), (2, True, False), (2, False, True))
    )
    return Measurements(
        engine="torch",
        engine_version="1",
        device="g",
        points=points,
        fixed_bytes=77,
        layer_bytes=1000,
        embed_bytes=300,
        head_bytes=300,
        kv_token_bytes=16,
    )


def test_the_knee_is_found_again() -> None:
    found = fit_knee(measured(), "g")
    assert found.error < 1e-3
    assert found.sharpness == pytest.approx(6.0, rel=0.05)
    assert found.base.layer_s == pytest.approx(BASE.layer_s, rel=0.02)
    assert found.base.token_s == pytest.approx(BASE.token_s, rel=0.02)


def test_an_affine_cost_misses_the_knee_that_this_one_has() -> None:
    noisy = measured(noise=0.03)
    assert fit(noisy, "g").error > 2 * fit_knee(noisy, "g").error
    assert fit_knee(noisy, "g").error == pytest.approx(0.03, rel=0.4)


def test_a_sharpness_of_one_is_the_affine_cost() -> None:
    cost = KneeStepCost(base=BASE, sharpness=1.0)
    for work in works():
        assert cost.step_s(work, 3, first=True, last=True) == pytest.approx(
            BASE.step_s(work, 3, first=True, last=True)
        )


def test_nothing_overflows_or_divides_by_zero() -> None:
    assert knee(np.array([0.0, 1e-300, 1e-9]), np.array([0.0, 0.0, 1e9]), 16.0) == pytest.approx(
        [0.0, 1e-300, 1e9]
    )


def test_slopes_are_derivatives() -> None:
    problem = KneeProblem(measured().points, fit(measured(), "g"))
    x = problem.start * np.linspace(0.7, 1.4, len(problem.start))
    slopes = problem.slopes(x)
    for k in range(len(x)):
        step = np.zeros(len(x))
        step[k] = 1e-6 * x[k]
        seen = (problem.predicted(x + step) - problem.predicted(x - step)) / (2 * step[k])
        assert slopes[:, k] == pytest.approx(seen, rel=1e-4, abs=1e-7)


class Slsqp:
    """A solver for non-linear constraints that is always at hand."""

    def minimise(self, program: NonlinearProgram, *, time_limit_s: float | None) -> Solution:
        from scipy.optimize import minimize

        constraints = []
        if len(program.row_lower):

            def above(x: Floats) -> Floats:
                return program.rows(x) - program.row_lower

            constraints = [{"type": "ineq", "fun": above, "jac": program.jacobian}]
        found = minimize(
            program.objective,
            program.start,
            jac=program.gradient,
            bounds=list(zip(program.lower, program.upper, strict=True)),
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": 500},
        )
        return Solution(
            status="optimal" if found.success else "error", termination=str(found.message), x=found.x
        )


def test_a_fit_that_does_not_promise_more_than_was_seen() -> None:
    noisy = measured(noise=0.05, seed=3)
    solver: NonlinearSolver = Slsqp()
    free = fit_knee(noisy, "g", solver=solver)
    safe = fit_knee(noisy, "g", solver=solver, shortfall=0.02)

    def least(cost: KneeStepCost) -> float:
        return min(
            cost.step_s(p.work, p.layers, first=p.first, last=p.last) / p.seconds for p in noisy.points
        )

    assert least(free) < 0.95
    assert least(safe) >= 0.98 - 1e-4
    assert safe.error > free.error


def test_a_bounded_shortfall_needs_a_solver_for_it() -> None:
    with pytest.raises(ProfileError, match="non-linear"):
        fit_knee(measured(), "g", shortfall=0.05)


def test_a_grid_is_evaluated_at_once() -> None:
    fields = {name: np.array([1.0, 40.0, 900.0]) for name in WorkGrid.__struct_fields__}
    seconds = step_grid(TRUE, WorkGrid(**fields), 5, "only", 1)
    one = StepWork(**dict.fromkeys(WorkGrid.__struct_fields__, 40.0))
    assert seconds.shape == (3, 5)
    assert seconds[1, 3] == pytest.approx(TRUE.step_s(one, 4, first=True, last=True))


class Measured:
    """The contract measures nothing: it asks with `measure=None`; this gives it the timed steps."""

    def __init__(self, form: str) -> None:
        self.profiler = build(EngineProfilerOptions.model_validate({"form": form}))

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: object
    ) -> AffineStepCost | KneeStepCost:
        found = self.profiler.step_cost(model, gpu, engine, dtype=dtype, measure=lambda *asked: measured())
        assert isinstance(found, AffineStepCost | KneeStepCost)
        return found


@pytest.mark.parametrize("form", ["knee", "affine"])
class TestEngineProfiler(ProfilerContract):
    @pytest.fixture
    def profiler(self, form: str) -> Profiler:
        return Measured(form)


def test_a_device_that_is_not_here_is_refused() -> None:
    profiler = build(EngineProfilerOptions())
    gpu = Gpu(name="H100", memory_bytes=1, memory_bytes_per_s=1.0, flops={})
    shape = ModelShape(
        architecture="LlamaForCausalLM",
        layers=1,
        hidden=8,
        heads=1,
        kv_heads=1,
        head_dim=8,
        intermediate=8,
        vocab=8,
        max_positions=8,
    )
    with pytest.raises(ProfileError, match="otherwise: analytic"):
        profiler.step_cost(shape, gpu, "torch", dtype="float32", measure=lambda *asked: None)
