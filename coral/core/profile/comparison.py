"""How far a step cost is from timed steps: what planning believes, beside what the engine does."""

from __future__ import annotations

from statistics import median
from typing import Literal

from msgspec import Struct

from coral.hookspecs.profiler import StepCost
from coral.types.step import Measurement, Measurements

Kind = Literal["prefill", "decode", "mixed"]

KINDS: tuple[Kind, ...] = ("prefill", "decode", "mixed")


class ComparedStep(Struct, frozen=True, kw_only=True):
    """`error` is predicted / measured − 1: negative where the profile promises too much."""

    kind: Kind
    layers: int
    first: bool
    last: bool
    prefill_tokens: float
    decode_rows: float
    context: float
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


class Comparison(Struct, frozen=True, kw_only=True):
    """`stated`: the error that the profile itself states; bytes are of one device."""

    profiler: str
    provenance: str
    engine: str
    engine_version: str
    measured_version: str
    stated: float
    steps: tuple[ComparedStep, ...]
    kv_token_bytes: tuple[int, int]
    """Profile, measured: KV bytes of a token in one layer."""
    layer_bytes: tuple[int, int]
    fixed_bytes: tuple[int, int]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of steps that were timed."""
        found = {step.kind for step in self.steps}
        return tuple(kind for kind in KINDS if kind in found)

    def error(self, kind: Kind | None = None) -> float:
        """Median absolute relative error; NaN where no step is of that kind."""
        found = [abs(step.error) for step in self.steps if kind is None or step.kind == kind]
        return median(found) if found else float("nan")

    @property
    def worst(self) -> ComparedStep:
        return max(self.steps, key=lambda step: abs(step.error))


def compare(cost: StepCost, measured: Measurements) -> Comparison:
    """Every timed step beside what the cost says of it."""
    return Comparison(
        profiler=cost.profiler,
        provenance=cost.provenance,
        engine=cost.engine,
        engine_version=cost.engine_version,
        measured_version=measured.engine_version,
        stated=cost.error,
        steps=tuple(_compared(cost, point) for point in measured.points),
        kv_token_bytes=(cost.kv_token_bytes, measured.kv_token_bytes),
        layer_bytes=(cost.weight_bytes(1, first=False, last=False, tied=False), measured.layer_bytes),
        fixed_bytes=(cost.fixed_bytes, measured.fixed_bytes),
    )


def _compared(cost: StepCost, point: Measurement) -> ComparedStep:
    work = point.work
    predicted = cost.step_s(work, point.layers, first=point.first, last=point.last, tp=point.tp)
    kind: Kind = "decode" if not work.prefill_tokens else "mixed" if work.decode_rows else "prefill"
    return ComparedStep(
        kind=kind,
        layers=point.layers,
        first=point.first,
        last=point.last,
        prefill_tokens=work.prefill_tokens,
        decode_rows=work.decode_rows,
        context=work.prefill_context + work.decode_context,
        measured_s=point.seconds,
        predicted_s=float(predicted),
    )
