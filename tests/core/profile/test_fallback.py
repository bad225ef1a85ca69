"""One profiler behind another."""

from __future__ import annotations

import msgspec
import pytest

from coral.core.profile import catalogue
from coral.core.profile.analytic import AnalyticProfiler
from coral.core.profile.engine import EngineProfiler
from coral.core.profile.fallback import WithFallback
from coral.core.profile.options import AnalyticOptions, EngineProfilerOptions
from coral.errors import BrokenRun, ProfileError
from coral.hookspecs.profiler import Measure, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import Measurements

SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_dim=64,
    intermediate=2048,
    vocab=1000,
    max_positions=4096,
)


class Knows:
    """A profiler that knows the GPUs it is given, and nothing else."""

    def __init__(self, *gpus: str) -> None:
        self.gpus = gpus

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        if gpu.name not in self.gpus:
            raise ProfileError(f"no table of {gpu.name}", mend=f"known: {', '.join(self.gpus)}")
        cost = AnalyticProfiler(AnalyticOptions()).step_cost(model, gpu, engine, dtype=dtype, measure=measure)
        return msgspec.structs.replace(cost, profiler="tables")  # type: ignore[type-var]  # a Struct


def ask(profiler: WithFallback, gpu: str) -> StepCost:
    return profiler.step_cost(SHAPE, catalogue.gpu(gpu), "torch", dtype="bfloat16", measure=None)


def test_the_second_is_asked_where_the_first_knows_nothing() -> None:
    both = WithFallback(Knows("L40S"), AnalyticProfiler(AnalyticOptions()))
    assert ask(both, "L40S").profiler == "tables"
    assert ask(both, "T4").profiler == "analytic"


def test_a_measuring_run_that_fails_is_no_reason_to_ask_another() -> None:
    def fails(shape: ModelShape, gpu: Gpu, dtype: str) -> Measurements | None:
        raise BrokenRun("out of memory")

    both = WithFallback(EngineProfiler(EngineProfilerOptions()), AnalyticProfiler(AnalyticOptions()))
    assert ask(both, "L40S").profiler == "analytic"
    with pytest.raises(BrokenRun, match="out of memory"):
        both.step_cost(SHAPE, catalogue.gpu("L40S"), "torch", dtype="bfloat16", measure=fails)


def test_where_neither_knows_both_are_heard() -> None:
    both = WithFallback(Knows("L40S"), Knows("L4"))
    with pytest.raises(ProfileError, match="no table of T4; and no table of T4") as caught:
        ask(both, "T4")
    assert caught.value.mend == "known: L4"
