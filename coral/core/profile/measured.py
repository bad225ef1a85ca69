"""The `measured` profiler: step costs from files of milliseconds per layer (`layer_times`).

A layer's time is taken apart into attention, which grows with context, and the rest, which is a curve over
the step's tokens: measured time less the analytic attention of the context it was measured at, made
non-decreasing. A step adds the analytic attention of its own context again, so a measured step is what was
measured.

    layer(p prompt tokens, d rows) = max(D(d), P(p + d)) + attention,    P(n) = min(D(n), P(n₀)) below its
    first n₀

D and P are the curves of decode and prompts; where one was not measured the other stands in. All-reduces
are within the curves of their degree. A degree that was not measured is the nearest that was, times the
ratio of the analytic layers. Embedding, output head and overhead per step are the analytic ones unless
given, memory is counted from the shape."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from coral.core.profile.analytic import AnalyticProfiler
from coral.core.profile.curve import Curve, curve
from coral.core.profile.layer_times import LayerTime, read_layer_times
from coral.core.profile.options import AnalyticOptions, MeasuredOptions
from coral.core.profile.roofline import RooflineStepCost
from coral.errors import ProfileError
from coral.hookspecs.profiler import Measure, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import Provenance, StepParts, StepWork

LEAST_SHARE = 0.1
"""Of a measured time, what is left to matrices where the analytic attention would take more."""
LEAST_ERROR = 0.05


class LayerCurves(Struct, frozen=True, kw_only=True):
    """Seconds of a layer without attention, at one tensor parallel degree."""

    prefill: Curve
    decode: Curve

    def seconds(self, work: StepWork) -> Any:
        first, tokens = self.prefill.tokens[0], work.tokens
        low = np.minimum(self.decode(tokens), self.prefill(first))
        prompts = np.where(np.less(tokens, first), low, self.prefill(tokens))
        return np.maximum(
            self.decode(work.decode_rows), np.where(np.greater(work.prefill_tokens, 0), prompts, 0)
        )


class MeasuredStepCost(Struct, frozen=True, kw_only=True):
    """`coral.hookspecs.profiler.StepCost`; elementwise. `analytic` answers for what was not measured."""

    analytic: RooflineStepCost
    curves: dict[int, LayerCurves]
    engine: str
    engine_version: str
    provenance: Provenance
    error: float
    notes: tuple[str, ...]
    """What was measured from where to where, and what stands in for the rest."""
    overhead_s: float | None = None
    embedding_s: float | None = None
    logits_s: float | None = None
    profiler: str = "measured"

    @property
    def elementwise(self) -> bool:
        return True

    @property
    def kv_token_bytes(self) -> int:
        return self.analytic.kv_token_bytes

    @property
    def fixed_bytes(self) -> int:
        return self.analytic.fixed_bytes

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        return self.analytic.weight_bytes(layers, first=first, last=last, tied=tied)

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        return self.step_parts(work, layers, first=first, last=last, tp=tp).step_s

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        told = self.analytic.step_parts(work, layers, first=first, last=last, tp=tp)
        return StepParts(
            compute_s=layers * self.layer_curves(tp).seconds(work),
            attention_s=told.attention_s,
            embedding_s=self.embedding_s if first and self.embedding_s is not None else told.embedding_s,
            logits_s=self.logits_s if last and self.logits_s is not None else told.logits_s,
            overhead_s=told.overhead_s if self.overhead_s is None else self.overhead_s,
        )

    def layer_curves(self, tp: int) -> LayerCurves:
        """Those of `tp`; made from the nearest degree that was measured where it was not."""
        if tp in self.curves:
            return self.curves[tp]
        near = min(self.curves, key=lambda known: (abs(np.log(known / tp)), known))
        return LayerCurves(
            prefill=self._at(self.curves[near].prefill, near, tp),
            decode=self._at(self.curves[near].decode, near, tp),
        )

    def _at(self, known: Curve, near: int, tp: int) -> Curve:
        tokens = np.array(known.tokens)
        ratio = self._layer_s(tokens, tp) / self._layer_s(tokens, near)
        points = list(zip(known.tokens, np.array(known.seconds) * ratio, strict=True))
        return curve(points, known.slope * float(ratio[-1]))

    def _layer_s(self, tokens: Any, tp: int) -> Any:
        alone = self.analytic.linear_s(tokens, tp) + self.analytic.efficiency.launch_s
        return alone + (self.analytic.all_reduce_s(tokens, tp) if tp > 1 else 0.0)


class MeasuredProfiler:
    """`coral.hookspecs.profiler.Profiler`."""

    def __init__(self, options: MeasuredOptions) -> None:
        """Raises ProfileError for files that cannot be read, and for a model of the options that none has."""
        self._options = options
        self._analytic = AnalyticProfiler(
            AnalyticOptions(memory_fraction=options.memory_fraction, workspace=options.workspace)
        )
        self._times = [one for path in options.files for one in read_layer_times(path)]
        content = b"".join(path.read_bytes() for path in options.files)
        self._digest = hashlib.sha256(content).hexdigest()[:12]
        named = {one.model for one in self._times}
        strange = ", ".join(sorted(set(options.models) - named))
        if strange:
            raise ProfileError(
                f"no file of measured layers names {strange}",
                mend=f"under `models` say the layers and hidden size of {', '.join(sorted(named))}",
            )

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        """Raises ProfileError where the files hold nothing of this model and GPU."""
        times = [one for one in self._times if self._gpu(one) == gpu.name and self._is(one.model, model)]
        if not times:
            raise self._nothing(model, gpu)
        analytic = self._analytic.step_cost(model, gpu, engine, dtype=dtype, measure=None)
        assert isinstance(analytic, RooflineStepCost)
        options = self._options
        curves = {tp: self._curves(times, analytic, tp) for tp in sorted({one.tp for one in times})}
        noise = max(max(one.prefill.noise, one.decode.noise) for one in curves.values())
        both = {one.phase for one in times} == {"prefill", "decode"}
        return MeasuredStepCost(
            analytic=analytic,
            curves=curves,
            engine=engine,
            engine_version=options.engine_version or f"file {self._digest}",
            provenance="measured" if both else "interpolated",
            error=max(LEAST_ERROR, noise) if options.error is None else options.error,
            notes=tuple(_notes(times)),
            overhead_s=options.overhead,
            embedding_s=options.embedding,
            logits_s=options.logits,
        )

    def _gpu(self, one: LayerTime) -> str:
        named: Mapping[str, str] = self._options.gpus
        return named.get(one.gpu, one.gpu)

    def _is(self, name: str, shape: ModelShape) -> bool:
        told = self._options.models.get(name)
        return told is not None and (told.layers, told.hidden) == (shape.layers, shape.hidden)

    def _nothing(self, model: ModelShape, gpu: Gpu) -> ProfileError:
        times = self._times
        strange = sorted({one.model for one in times} - set(self._options.models))
        known = sorted({f"{one.model} on {self._gpu(one)}" for one in times})
        return ProfileError(
            f"no measured layers of {model.layers} layers of width {model.hidden} on {gpu.name!r}",
            mend=(
                f"say the layers and hidden size of {', '.join(strange)} under `models`"
                if strange
                else f"the files hold {', '.join(known)}"
            ),
        )

    def _curves(self, times: Sequence[LayerTime], analytic: RooflineStepCost, tp: int) -> LayerCurves:
        found = {}
        for phase in ("prefill", "decode"):
            points = [
                (one.tokens, self._without_attention(one, analytic))
                for one in times
                if one.tp == tp and one.phase == phase
            ]
            if points:
                last = max(tokens for tokens, _ in points)
                rise = analytic.linear_s(2 * last, tp) - analytic.linear_s(last, tp)
                found[phase] = curve(points, float(rise) / last)
        other = next(iter(found.values()))
        return LayerCurves(prefill=found.get("prefill", other), decode=found.get("decode", other))

    def _without_attention(self, one: LayerTime, analytic: RooflineStepCost) -> float:
        if one.phase == "decode":
            each = self._options.decode_context if one.context is None else one.context
            work = StepWork(decode_rows=one.tokens, decode_context=one.tokens * each)
        else:
            each = min(one.tokens, self._options.prompt_tokens if one.context is None else one.context)
            work = StepWork(prefill_tokens=one.tokens, prefill_context=one.tokens * each / 2)
        shared = float(analytic.attention_s(work, analytic.shape.layers, one.tp)) / analytic.shape.layers
        return max(one.seconds - shared, LEAST_SHARE * one.seconds)


def _notes(times: Sequence[LayerTime]) -> list[str]:
    """Ranges of what was measured, by phase and degree."""
    notes = []
    for phase, what in (("prefill", "prompt tokens"), ("decode", "decode rows")):
        for tp in sorted({one.tp for one in times}):
            tokens = [one.tokens for one in times if one.phase == phase and one.tp == tp]
            notes.append(
                f"{what} {min(tokens):g} to {max(tokens):g} at TP {tp}; "
                "beyond by the last slope or the analytic one"
                if tokens
                else f"no {what} at TP {tp}: the other phase stands in"
            )
    return notes


def build(options: MeasuredOptions) -> MeasuredProfiler:
    return MeasuredProfiler(options)
