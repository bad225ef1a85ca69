"""What `coral profile` shows of one step cost: its fit, typical steps by their parts, and warnings."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from coral.core.plugins import Registry
from coral.core.profile.comparison import Comparison
from coral.core.profile.fit import COEFFICIENTS, fit
from coral.core.profile.knee import KneeStepCost, fit_knee
from coral.core.profile.records import Record
from coral.core.profile.throughput import degrees
from coral.errors import UnknownDegree, UsageError
from coral.hookspecs.profiler import StepCost
from coral.hookspecs.solver import NonlinearSolver
from coral.types.hardware import Gpu
from coral.types.model import ModelSpec
from coral.types.step import AffineStepCost, StepWork

Fitted = AffineStepCost | KneeStepCost

TYPICAL = {
    "decode, 1 row at 1,024": StepWork(decode_rows=1, decode_context=1024, logit_rows=1),
    "decode, 64 rows at 1,024": StepWork(decode_rows=64, decode_context=65536, logit_rows=64),
    "prefill, 1,024 tokens": StepWork(prefill_tokens=1024, prefill_context=524288, logit_rows=1),
}


class TypicalStep(Struct, frozen=True, kw_only=True):
    """A step through all layers with both ends. `seconds`: a layer's mean, then the parts of the whole
    step: compute, attention, all-reduce, embedding, logits, overhead."""

    what: str
    tp: int
    seconds: tuple[float, ...]


class Believed(Struct, frozen=True, kw_only=True):
    """What planning believes of a model on a GPU, and where it comes from."""

    model: str
    gpu: str
    profiler: str
    provenance: str
    engine: str
    engine_version: str
    error: float
    layer_bytes: int
    kv_token_bytes: int
    fixed_bytes: int
    steps: tuple[TypicalStep, ...]
    notes: tuple[str, ...] = ()
    """What the figures take for granted: dtypes that stand in, ranges that were measured."""


def believed(model: ModelSpec, gpu: Gpu, cost: StepCost, max_tp: int) -> Believed:
    """Typical steps at the least and the greatest tensor parallel degree up to `max_tp`; a degree that the
    profiler knows nothing of is left out."""
    able = degrees(model.shape, max_tp, max_tp)
    layers = model.shape.layers
    steps = []
    for tp in sorted({able[0], able[-1]}):
        for what, work in TYPICAL.items():
            try:
                parts = cost.step_parts(work, layers, first=True, last=True, tp=tp)
            except UnknownDegree:
                continue
            inner = parts.compute_s + parts.attention_s + parts.allreduce_s
            apart = (
                float(inner / layers),
                *(float(getattr(parts, name)) for name in parts.__struct_fields__),
            )
            steps.append(TypicalStep(what=what, tp=tp, seconds=apart))
    return Believed(
        model=model.name,
        gpu=gpu.name,
        profiler=cost.profiler,
        provenance=cost.provenance,
        engine=cost.engine,
        engine_version=cost.engine_version,
        error=cost.error,
        layer_bytes=cost.weight_bytes(1, first=False, last=False, tied=False),
        kv_token_bytes=cost.kv_token_bytes,
        fixed_bytes=cost.fixed_bytes,
        steps=tuple(steps),
        notes=tuple(getattr(cost, "notes", ())),
    )


def fitted(
    run: Record,
    *,
    form: Literal["knee", "affine"],
    solver: NonlinearSolver | None = None,
    shortfall: float | None = None,
) -> Fitted:
    """A step cost of one measuring run. Raises ProfileError where its steps do not tell one."""
    device = run.device
    if form == "affine":
        return fit(run.measurements, device, "engine")
    return fit_knee(run.measurements, device, solver=solver, shortfall=shortfall)


def coefficients(cost: Fitted) -> dict[str, float]:
    """Seconds by name, and the knee's sharpness where there is one."""
    base = cost.base if isinstance(cost, KneeStepCost) else cost
    found = {name: float(getattr(base, name)) for name in COEFFICIENTS}
    return found | ({"sharpness": cost.sharpness} if isinstance(cost, KneeStepCost) else {})


def nonlinear_solver(registry: Registry, name: str) -> NonlinearSolver:
    """Raises PluginError where it is not installed, UsageError where it minimises no smooth functions."""
    options = registry.options_model("solver", name).model_validate({})
    built = registry.build("solver", name, options)
    if not isinstance(built, NonlinearSolver):
        raise UsageError(
            f"solver {name!r} takes linear programs only",
            mend="name one for non-linear programs: pip install coral-solver-ipopt, --solver ipopt",
        )
    return built


def warnings_of(compared: Comparison, limit: float) -> list[str]:
    """What a person should know before believing the profile: errors above the limit or above what the
    profile states, another engine version, KV or weights of another size."""
    lines = []
    for kind in compared.kinds:
        error = compared.error(kind)
        if error > limit:
            lines.append(f"{kind} steps are off by {error:.0%} in the median, above the limit of {limit:.0%}")
        elif error > max(compared.stated, 0.01) * 1.5:
            stated = f"the profile states {compared.stated:.0%}"
            lines.append(f"{kind} steps are off by {error:.0%} in the median, {stated}")
    if compared.engine_version and compared.engine_version != compared.measured_version:
        versions = (compared.engine_version, compared.measured_version)
        lines.append("the profile is of engine version {}, here runs {}".format(*versions))
    for what, (says, is_) in (
        ("KV of a token in one layer", compared.kv_token_bytes),
        ("the weights of one layer", compared.layer_bytes),
    ):
        if is_ and abs(says / is_ - 1) > limit:
            lines.append(f"{what} takes {is_:,} bytes, the profile says {says:,}")
    return lines
