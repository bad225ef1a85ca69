"""One test per equation of a step's cost: the affine form and the roofline."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from coral.core.profile import catalogue, weights
from coral.core.profile.grid import WorkGrid, step_grid
from coral.core.profile.roofline import Efficiency, RooflineStepCost
from coral.hookspecs.profiler import StepCost
from coral.types.model import DTYPE_BYTES, ModelShape, MoeShape, Role
from coral.types.step import AffineStepCost, StepParts, StepWork

WORK = StepWork(prefill_tokens=30, prefill_context=600, decode_rows=4, decode_context=400, logit_rows=5)

AFFINE = AffineStepCost(
    gpu="g",
    engine="e",
    engine_version="1",
    provenance="measured",
    error=0.1,
    overhead_s=1.0,
    layer_s=0.1,
    token_s=0.01,
    attend_s=0.001,
    embed_token_s=0.2,
    head_s=3.0,
    logit_row_s=0.5,
    allreduce_s=0.03,
    allreduce_token_s=0.004,
    layer_bytes=100,
    embed_bytes=50,
    head_bytes=50,
    kv_token_bytes=8,
)

DENSE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=6,
    hidden=1024,
    heads=16,
    kv_heads=4,
    head_dim=64,
    intermediate=4096,
    vocab=32_000,
    max_positions=4096,
)
MOE = msgspec.structs.replace(
    DENSE, moe=MoeShape(experts=32, experts_per_token=4, intermediate=1024), weight_dtype="mxfp4"
)
IDEAL = Efficiency(compute=1.0, bandwidth=1.0, launch_s=0.0, overhead_s=0.0)


def roofline(
    shape: ModelShape = DENSE, gpu: str = "L40S", efficiency: Efficiency = IDEAL
) -> RooflineStepCost:
    return RooflineStepCost(
        shape=shape, gpu=catalogue.gpu(gpu), engine="e", engine_version="1", efficiency=efficiency
    )


def test_affine_middle_stage() -> None:
    expected = 1.0 + 3 * (0.1 + 0.01 * 34 + 0.001 * 1000)
    assert AFFINE.step_s(WORK, 3, first=False, last=False) == pytest.approx(expected)


def test_affine_embedding_is_paid_by_the_first_stage() -> None:
    middle = AFFINE.step_s(WORK, 3, first=False, last=False)
    assert AFFINE.step_s(WORK, 3, first=True, last=False) - middle == pytest.approx(0.2 * 34)


def test_affine_head_is_paid_by_the_last_stage() -> None:
    middle = AFFINE.step_s(WORK, 3, first=False, last=False)
    assert AFFINE.step_s(WORK, 3, first=False, last=True) - middle == pytest.approx(3.0 + 0.5 * 5)


def test_affine_tensor_parallel_divides_layers_and_adds_all_reduces() -> None:
    expected = 1.0 + 3 * (0.1 + 0.01 * 34 + 0.001 * 1000) / 2 + 3 * 2 * (0.03 + 0.004 * 34)
    assert AFFINE.step_s(WORK, 3, first=False, last=False, tp=2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "last", "tied", "expected"),
    [
        (False, False, True, 300),
        (True, False, True, 350),
        (False, True, True, 350),
        (True, True, True, 350),
        (True, True, False, 400),
    ],
)
def test_affine_weights(first: bool, last: bool, tied: bool, expected: int) -> None:
    assert AFFINE.weight_bytes(3, first=first, last=last, tied=tied) == expected


def test_roofline_decode_of_one_row_reads_the_weights() -> None:
    cost = roofline()
    work = StepWork(decode_rows=1, decode_context=0, logit_rows=1)
    expected = 6 * weights.layer_bytes(DENSE) / cost.gpu.memory_bytes_per_s
    assert cost.step_s(work, 6, first=False, last=False) == pytest.approx(expected)


def test_roofline_long_prefill_computes() -> None:
    cost = roofline()
    work = StepWork(prefill_tokens=4096)
    flops = 2 * weights.layer_weights(DENSE).active(DENSE) * 4096
    expected = 6 * flops / cost.gpu.flops["bfloat16"]
    assert cost.step_s(work, 6, first=False, last=False) == pytest.approx(expected)


def test_roofline_attention_computes_for_prompts_and_reads_kv_for_decode() -> None:
    cost = roofline()
    prompt = StepWork(prefill_context=1e6)
    assert cost.attention_s(prompt, 1, 1) == pytest.approx(4 * 1024 * 1e6 / cost.gpu.flops["bfloat16"])
    rows = StepWork(decode_context=1e6)
    assert cost.attention_s(rows, 1, 1) == pytest.approx(1e6 * 2 * 4 * 64 * 2 / cost.gpu.memory_bytes_per_s)


def test_roofline_logits() -> None:
    cost = roofline()
    middle = cost.step_s(WORK, 2, first=False, last=False)
    read = 32_000 * 1024 * 2 / cost.gpu.memory_bytes_per_s
    assert cost.step_s(WORK, 2, first=False, last=True) - middle == pytest.approx(read)
    assert cost.logits_s(4000, 1) == pytest.approx(2 * 1024 * 32_000 * 4000 / cost.gpu.flops["bfloat16"])


def test_roofline_experts_that_a_batch_hits_are_read() -> None:
    cost = roofline(MOE)
    assert cost.experts_hit(1) == pytest.approx(4)
    assert cost.experts_hit(2) == pytest.approx(32 * (1 - (28 / 32) ** 2))
    assert 31.9 < cost.experts_hit(100) < 32
    parts = weights.layer_weights(MOE)
    read = (parts.attention + parts.mlp) * 2 + 4 * parts.expert * DTYPE_BYTES["mxfp4"]
    assert cost.linear_s(1, 1) == pytest.approx(read / cost.gpu.memory_bytes_per_s)


@pytest.mark.parametrize(
    ("gpu", "tp", "measured_ms"),
    [("L40S", 2, 0.89), ("L40S", 4, 6.7), ("L40S", 8, 15.8), ("A100-40GB", 8, 0.21), ("H100", 2, 0.08)],
)
def test_roofline_all_reduce_is_near_what_was_measured(gpu: str, tp: int, measured_ms: float) -> None:
    """8.4 M bf16 elements: 8,203 tokens of width 1,024; two all-reduces per layer."""
    seconds = roofline(gpu=gpu).all_reduce_s(8.4e6 / 1024, tp)
    assert seconds / 2 * 1e3 == pytest.approx(measured_ms, rel=0.2)


def test_roofline_wide_tensor_parallel_over_pcie_does_not_pay_in_prefill() -> None:
    cost = roofline(msgspec.structs.replace(DENSE, hidden=5120, intermediate=20_480))
    work = StepWork(prefill_tokens=2048, prefill_context=2048**2 / 2)
    seconds = {tp: cost.step_s(work, 6, first=False, last=False, tp=tp) for tp in (2, 4)}
    assert seconds[4] > seconds[2]


@pytest.mark.parametrize("shape", [DENSE, MOE])
@pytest.mark.parametrize("tp", [1, 2])
def test_roofline_never_falls_with_work_or_layers(shape: ModelShape, tp: int) -> None:
    cost = roofline(shape, efficiency=Efficiency())
    base = cost.step_s(WORK, 3, first=True, last=True, tp=tp)
    assert cost.step_s(WORK, 4, first=True, last=True, tp=tp) >= base
    for name in WORK.__struct_fields__:
        more = msgspec.structs.replace(WORK, **{name: getattr(WORK, name) * 2 + 1})
        assert cost.step_s(more, 3, first=True, last=True, tp=tp) >= base


class Opaque:
    """A step cost that takes numbers only, as a third party's may."""

    profiler, engine, engine_version, provenance, error = "p", "e", "1", "measured", 0.1
    kv_token_bytes, fixed_bytes = 8, 0
    elementwise = False

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        assert isinstance(work.decode_rows, float)
        assert isinstance(layers, int)
        return AFFINE.step_s(work, layers, first=first, last=last, tp=tp)

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        return AFFINE.step_parts(work, layers, first=first, last=last, tp=tp)

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        return AFFINE.weight_bytes(layers, first=first, last=last, tied=tied)


@pytest.mark.parametrize("cost", [AFFINE, roofline(efficiency=Efficiency()), roofline(MOE)])
def test_parts_are_told_apart(cost: StepCost) -> None:
    alone = cost.step_parts(WORK, 6, first=False, last=False)
    assert alone.compute_s > 0
    assert alone.attention_s > 0
    assert alone.allreduce_s == alone.embedding_s == alone.logits_s == 0
    shared = cost.step_parts(WORK, 6, first=True, last=True, tp=2)
    assert shared.allreduce_s > 0
    assert shared.embedding_s > 0
    assert shared.logits_s > 0
    assert shared.overhead_s == alone.overhead_s
    assert shared.step_s == pytest.approx(cost.step_s(WORK, 6, first=True, last=True, tp=2))
    longer = msgspec.structs.replace(WORK, decode_context=WORK.decode_context * 1000)
    assert cost.step_parts(longer, 6, first=False, last=False).attention_s > alone.attention_s
    assert cost.step_parts(longer, 6, first=False, last=False).compute_s == alone.compute_s


@pytest.mark.parametrize("cost", [AFFINE, roofline(efficiency=Efficiency()), roofline(MOE), Opaque()])
@pytest.mark.parametrize("role", ["first", "mid", "last", "only"])
def test_a_grid_is_the_single_steps(cost: StepCost, role: Role) -> None:
    rng = np.random.default_rng(1)
    works = WorkGrid(**{name: rng.uniform(1, 500, 5) for name in WorkGrid.__struct_fields__})
    seconds = step_grid(cost, works, 6, role, 2)
    first, last = role in ("first", "only"), role in ("last", "only")
    for i in range(5):
        work = StepWork(**{name: float(getattr(works, name)[i]) for name in WorkGrid.__struct_fields__})
        for j in range(1, 7):
            assert seconds[i, j - 1] == pytest.approx(cost.step_s(work, j, first=first, last=last, tp=2))
