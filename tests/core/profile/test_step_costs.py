"""One test per equation of a step's cost: the affine form and the roofline."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from coral.core.profile import catalogue, weights
from coral.core.profile.analytic import AnalyticProfiler
from coral.core.profile.calibration import CLASSES, Efficiency
from coral.core.profile.grid import WorkGrid, step_grid
from coral.core.profile.options import AnalyticOptions
from coral.core.profile.roofline import EXPERT_LAUNCH_S, EXPERT_SHARE_UNPACKED, RooflineStepCost
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
IDEAL = Efficiency(compute=1.0, compute_low=1.0, attention=1.0, bandwidth=1.0, launch_s=0.0, overhead_s=0.0)


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


def rows_s(cost: RooflineStepCost, tokens: float, inner: float, tp: int = 1) -> float:
    """Norms, residuals and gates of a layer: ten passes over hidden rows, three over the gated ones."""
    return tokens * (10 * 1024 + 3 * inner / tp) * 2 / cost.gpu.memory_bytes_per_s


def test_roofline_decode_of_one_row_reads_the_weights() -> None:
    cost = roofline()
    work = StepWork(decode_rows=1, decode_context=0, logit_rows=1)
    parameters = weights.layer_weights(DENSE).active(DENSE)
    read = weights.layer_bytes(DENSE) / cost.gpu.memory_bytes_per_s
    layer = math.hypot(2 * parameters / cost.gpu.flops["bfloat16"], read) + rows_s(cost, 1, 4096)
    assert cost.step_s(work, 6, first=False, last=False) == pytest.approx(6 * layer)
    assert layer == pytest.approx(read, rel=0.01)


def test_roofline_long_prefill_computes() -> None:
    cost = roofline()
    flops = 2 * weights.layer_weights(DENSE).active(DENSE) * 4096 / cost.gpu.flops["bfloat16"]
    read = weights.layer_bytes(DENSE) / cost.gpu.memory_bytes_per_s
    layer = math.hypot(flops, read) + rows_s(cost, 4096, 4096)
    assert cost.step_s(StepWork(prefill_tokens=4096), 6, first=False, last=False) == pytest.approx(6 * layer)
    assert flops > 5 * read


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_roofline_tensor_parallel_divides_matrices_and_gates_but_not_norms(tp: int) -> None:
    cost = roofline()
    flops = 2 * weights.layer_weights(DENSE).active(DENSE) * 500 / tp / cost.gpu.flops["bfloat16"]
    read = weights.layer_bytes(DENSE) / tp / cost.gpu.memory_bytes_per_s
    assert cost.linear_s(500, tp) == pytest.approx(math.hypot(flops, read) + rows_s(cost, 500, 4096, tp))


def test_roofline_attention_computes_for_prompts_and_reads_kv_for_decode() -> None:
    cost = roofline(efficiency=msgspec.structs.replace(IDEAL, attention=0.5))
    prompt = 4 * 1024 * 1e6 / (0.5 * cost.gpu.flops["bfloat16"])
    rows = 1e6 * 2 * 4 * 64 * 2 / cost.gpu.memory_bytes_per_s
    assert cost.attention_s(StepWork(prefill_context=1e6), 1, 1) == pytest.approx(prompt)
    assert cost.attention_s(StepWork(decode_context=1e6), 1, 1) == pytest.approx(rows)
    both = StepWork(prefill_context=1e6, decode_context=1e6)
    assert cost.attention_s(both, 3, 2) == pytest.approx(3 * (prompt + rows) / 2)


def test_roofline_windows_cap_what_is_attended() -> None:
    windows = (64, 0, 64, 0, 64, 0)
    cost = roofline(msgspec.structs.replace(DENSE, windows=windows))
    full = roofline().attention_s(StepWork(decode_rows=10, decode_context=10 * 1000), 1, 1)
    capped = roofline().attention_s(StepWork(decode_rows=10, decode_context=10 * 64), 1, 1)
    work = StepWork(decode_rows=10, decode_context=10 * 1000)
    assert cost.attention_s(work, 3, 1) == pytest.approx(
        2 * full + capped
    )  # the worst run: full, window, full


def test_roofline_logits() -> None:
    cost = roofline()
    middle = cost.step_s(WORK, 2, first=False, last=False)
    read = 32_000 * 1024 * 2 / cost.gpu.memory_bytes_per_s
    few = math.hypot(2 * 1024 * 32_000 * 5 / cost.gpu.flops["bfloat16"], read)
    assert cost.step_s(WORK, 2, first=False, last=True) - middle == pytest.approx(few)
    many = math.hypot(2 * 1024 * 32_000 * 4000 / cost.gpu.flops["bfloat16"], read)
    assert cost.logits_s(4000, 1) == pytest.approx(many)


def test_roofline_experts_that_a_batch_hits_are_read() -> None:
    cost = roofline(MOE)
    assert cost.experts_hit(1) == pytest.approx(4)
    assert cost.experts_hit(2) == pytest.approx(32 * (1 - (28 / 32) ** 2))
    assert 31.9 < cost.experts_hit(100) < 32
    expert = weights.layer_weights(MOE).expert
    for tokens, hit in ((1, 4.0), (4096, 32.0)):
        read = hit * expert * DTYPE_BYTES["mxfp4"] / cost.gpu.memory_bytes_per_s
        flops = 2 * expert * tokens * 4 / (EXPERT_SHARE_UNPACKED * cost.gpu.flops["bfloat16"])
        assert cost.experts_s(tokens, 1) == pytest.approx(math.hypot(flops, read) + EXPERT_LAUNCH_S)
    dense = msgspec.structs.replace(MOE, moe=None, intermediate=1, gated_mlp=False)
    shared = roofline(msgspec.structs.replace(dense, weight_dtype="bfloat16")).linear_s(1, 1)
    assert cost.linear_s(1, 1) == pytest.approx(shared + cost.experts_s(1, 1), rel=0.02)


def test_a_shared_expert_is_read_and_multiplied_for_every_token() -> None:
    moe = MoeShape(experts=32, experts_per_token=4, intermediate=1024, shared_intermediate=4096)
    shape = msgspec.structs.replace(MOE, moe=moe)
    more = roofline(shape).linear_s(1, 1) - roofline(MOE).linear_s(1, 1)
    assert more == pytest.approx(3 * 1024 * 4096 * 2 / catalogue.gpu("L40S").memory_bytes_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "weight", "active", "flops", "bytes_", "stand_in"),
    [
        ("L40S", "bfloat16", "bfloat16", 362e12, 2, ""),
        ("L40S", "float8", "bfloat16", 733e12, 1, ""),
        ("A100-80GB", "float8", "bfloat16", 312e12, 1, "bfloat16 products for float8"),
        ("T4", "bfloat16", "bfloat16", 65e12, 2, "float16 for bfloat16"),
        ("V100", "float8", "float16", 125e12, 2, "weights of float8 unpacked to float16 in memory"),
        ("T4", "mxfp4", "bfloat16", 65e12, 2, "unpacked to float16 in memory"),
        ("H100", "mxfp4", "bfloat16", 989e12, 0.53125, ""),
        ("B200", "mxfp4", "bfloat16", 4500e12, 0.53125, ""),
        ("B200", "nvfp4", "bfloat16", 9000e12, 0.5625, ""),
        ("H100", "int4", "float16", 989e12, 0.51953125, ""),
        ("MI300X", "float8", "bfloat16", 2615e12, 1, ""),
    ],
)
def test_what_stands_in_for_a_dtype_that_a_gpu_lacks_is_said(
    gpu: str, weight: str, active: str, flops: float, bytes_: float, stand_in: str
) -> None:
    """No bfloat16 before compute capability 8.0 (V100, T4), no float8 before 8.9 (A100)."""
    shape = msgspec.structs.replace(DENSE, weight_dtype=weight, activation_dtype=active)
    cost = roofline(shape, gpu)
    assert cost.precision.flops == flops
    assert stand_in in cost.stand_in
    assert bool(stand_in) is bool(cost.stand_in)
    parameters = weights.layer_weights(shape).parameters(shape)
    assert cost.weight_bytes(1, first=False, last=False, tied=False) == math.ceil(parameters * bytes_)


def test_every_class_has_its_shares_and_an_error() -> None:
    for name in catalogue.gpus():
        assert catalogue.gpu_class(name) in CLASSES
    assert catalogue.gpu_class("my-own") == "unknown"
    for one in CLASSES.values():
        assert 0.2 < one.compute <= 1
        assert 0.6 < one.bandwidth <= 1
        assert 0.2 < one.attention <= one.compute
        assert 0.05 < one.error <= 0.3


def test_options_stand_in_place_of_what_was_calibrated() -> None:
    told = AnalyticProfiler(AnalyticOptions())
    own = AnalyticProfiler(AnalyticOptions(bandwidth_efficiency=0.5, error=0.01))
    assert told.efficiency("H100") == CLASSES["hopper"]
    assert own.efficiency("H100") == msgspec.structs.replace(CLASSES["hopper"], bandwidth=0.5, error=0.01)


@pytest.mark.parametrize(
    ("gpu", "tp", "measured_ms"),
    [
        ("L40S", 2, 0.89),
        ("L40S", 4, 6.7),
        ("L40S", 8, 15.8),
        ("A100-80GB", 2, 0.126),
        ("A100-80GB", 4, 0.182),
        ("A100-80GB", 8, 0.214),
        ("H100", 2, 0.081),
        ("H100", 4, 0.099),
        ("B200", 2, 0.057),
        ("B200", 4, 0.068),
    ],
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
