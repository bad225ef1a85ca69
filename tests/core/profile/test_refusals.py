"""What a rate of 0 stands for is said with the node and the reason, when tables are made."""

from __future__ import annotations

import msgspec
import pytest

from coral.core.profile import catalogue
from coral.core.profile.calibration import CLASSES
from coral.core.profile.device import Device, Hop
from coral.core.profile.rates import RULES
from coral.core.profile.refusals import refusal
from coral.core.profile.roofline import RooflineStepCost
from coral.core.profile.throughput import throughput_table
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import Demand, ModelShape, ModelSpec, Phase, RequestClass, Role, Slo

SHAPE = ModelShape(
    architecture="Qwen3ForCausalLM",
    layers=64,
    hidden=5120,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=25600,
    vocab=151936,
    max_positions=40960,
)
HOP = Hop(latency_s=1e-4, bytes_per_s=1e9)


def model(shape: ModelShape = SHAPE, prompt: float = 1000, slo: Slo | None = None) -> ModelSpec:
    return ModelSpec(
        name="m",
        shape=shape,
        slo=slo or Slo(prefill_s=2.0, decode_s=0.1),
        demand=Demand(
            requests_per_s=1,
            classes=(RequestClass(input_tokens=prompt, output_tokens=200),),
            input_tokens_quantile=prompt,
        ),
        phases=("prefill", "decode"),
        engine="e",
    )


def able(_: ModelSpec, gpu: Gpu) -> EngineCapabilities:
    return EngineCapabilities(
        version="1",
        block_size=16,
        dtypes=(),
        max_step_tokens=8192,
        max_step_requests=64,
        max_tp=8,
        refusal="the engine has no kernels for it" if gpu.name == "T4" else None,
    )


def cost(spec: ModelSpec, gpu: Gpu) -> StepCost:
    efficiency = CLASSES[catalogue.gpu_class(gpu.name)]
    return RooflineStepCost(shape=spec.shape, gpu=gpu, engine="e", engine_version="1", efficiency=efficiency)


def device(gpu: str, spec: ModelSpec) -> Device:
    one = catalogue.gpu(gpu)
    return Device(spec, one, cost(spec, one), able(spec, one), HOP)


@pytest.mark.parametrize(
    ("gpu", "spec", "phase", "layers", "stages", "message"),
    [
        ("T4", model(), "decode", 1, 2, "T4: the engine has no kernels for it"),
        (
            "L4",
            model(),
            "decode",
            40,
            2,
            r"L4: weights of 40 layers are .* GiB a GPU too large \(of 22.5 GiB",
        ),
        ("L4", model(prompt=200_000), "decode", 15, 4, "KV of one prompt of 200000 tokens over 15 layers is"),
        ("L40S", model(), "decode", 30, 8, "30 layers take longer than the 12.5 ms that a stage of 8 has"),
        ("L4", model(prompt=20_000), "prefill", 8, 2, "also for a single prompt"),
        ("H100", model(slo=Slo(prefill_s=1, decode_s=2e-4)), "decode", 1, 2, "handing rows on takes all"),
    ],
)
def test_a_stage_that_a_node_cannot_hold_is_refused_with_node_and_reason(
    gpu: str, spec: ModelSpec, phase: Phase, layers: int, stages: int, message: str
) -> None:
    """A cut that cannot be held is known when the plan is made, never when an engine starts."""
    found = refusal(device(gpu, spec), phase, "mid", 1, layers, stages)
    assert found is not None
    assert found.startswith(gpu)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("windows", [(), tuple(4096 if i % 4 else 0 for i in range(64))])
def test_there_is_a_reason_exactly_where_the_rate_is_0(phase: Phase, windows: tuple[int, ...]) -> None:
    """Also of a model whose layers differ, cut anywhere: the worst run of that many layers counts."""
    spec = model(msgspec.structs.replace(SHAPE, windows=windows), prompt=3000)
    refused = 0
    cases: list[tuple[Role, int]] = [("only", 1), ("first", 4), ("last", 4)]
    for gpu in ("L4", "L40S", "H100"):
        one = device(gpu, spec)
        for role, stages in cases:
            rates = RULES[phase](one, role, 1, [stages])[0]
            for layers in (1, 8, 24, 48, 64):
                reason = refusal(one, phase, role, 1, layers, stages)
                assert (reason is None) == bool(rates[layers - 1] > 0)
                refused += reason is not None
    assert refused > 5


def test_tables_say_which_node_types_hold_nothing_and_why() -> None:
    kinds = tuple(NodeType(gpu, count) for gpu in ("L4", "T4", "H100") for count in (1, 2))
    spec = model(prompt=6_000_000, slo=Slo(prefill_s=2, decode_s=5))
    found = throughput_table(spec, "decode", kinds, catalogue.gpus(), cost, able, HOP, 2)
    assert set(found.refused) == {"T4 x1", "T4 x2", "L4 x1"}
    assert "the engine has no kernels for it" in found.refused["T4 x2"]
    assert "KV of one prompt of 6000000 tokens over 1 layer" in found.refused["L4 x1"]
    for c, kind in enumerate(kinds):
        assert (str(kind) in found.refused) == (not found.rate[..., c].any())
