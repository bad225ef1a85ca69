"""What `coral profile show` tells of a step cost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coral.core.profile import catalogue
from coral.core.profile.calibration import Efficiency
from coral.core.profile.profiling import TYPICAL, believed
from coral.core.profile.roofline import RooflineStepCost
from coral.errors import UnknownDegree
from coral.types.model import Demand, ModelShape, ModelSpec, RequestClass, Slo
from coral.types.step import StepParts, StepWork

MODEL = ModelSpec(
    name="m",
    shape=ModelShape(
        architecture="LlamaForCausalLM",
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        intermediate=8192,
        vocab=128256,
        max_positions=131072,
    ),
    slo=Slo(prefill_s=1, decode_s=0.1),
    demand=Demand(
        requests_per_s=1,
        classes=(RequestClass(input_tokens=100, output_tokens=10),),
        input_tokens_quantile=100,
    ),
    phases=("mixed",),
    engine="vllm",
)
COST = RooflineStepCost(
    shape=MODEL.shape,
    gpu=catalogue.gpu("L40S"),
    engine="vllm",
    engine_version="1",
    efficiency=Efficiency(),
)


class AloneOnly(msgspec.Struct):
    def __getattr__(self, name: str) -> Any:
        return getattr(COST, name)

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        if tp > 1:
            raise UnknownDegree(f"tensor parallel {tp} was not measured")
        return COST.step_parts(work, layers, first=first, last=last)


def test_typical_steps_can_be_sent_as_json() -> None:
    told = believed(MODEL, catalogue.gpu("L40S"), COST, 8)
    assert [step.tp for step in told.steps] == [1] * len(TYPICAL) + [8] * len(TYPICAL)
    again = msgspec.json.decode(msgspec.json.encode(told), type=type(told))
    assert again == told
    layer_s, *parts = told.steps[0].seconds
    assert 16 * layer_s == pytest.approx(sum(parts[:3]))


def test_a_degree_that_nothing_is_known_of_is_left_out() -> None:
    told = believed(MODEL, catalogue.gpu("L40S"), AloneOnly(), 8)
    assert {step.tp for step in told.steps} == {1}
