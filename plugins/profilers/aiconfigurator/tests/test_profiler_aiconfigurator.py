"""The contract, and what the composed steps must agree with."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from coral_profiler_aiconfigurator.cost import KernelStepCost, full_layers
from coral_profiler_aiconfigurator.layer import Heads
from coral_profiler_aiconfigurator.options import AIConfiguratorOptions
from coral_profiler_aiconfigurator.profiler import AIConfiguratorProfiler, build

from coral.errors import ProfileError, UnknownDegree
from coral.testing.profiler import ProfilerContract
from coral.types.hardware import Gpu
from coral.types.model import ModelShape, MoeShape
from coral.types.step import StepWork

PROFILER = build(AIConfiguratorOptions(overhead=0.0))
QWEN3_32B = ModelShape(
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
PHI_4 = ModelShape(
    architecture="Phi3ForCausalLM",
    layers=40,
    hidden=5120,
    heads=40,
    kv_heads=10,
    head_dim=128,
    intermediate=17920,
    vocab=100352,
    max_positions=16384,
)
GPT_OSS_120B = ModelShape(
    architecture="GptOssForCausalLM",
    layers=36,
    hidden=2880,
    heads=64,
    kv_heads=8,
    head_dim=64,
    intermediate=2880,
    vocab=201088,
    max_positions=131072,
    moe=MoeShape(experts=128, experts_per_token=4, intermediate=2880),
    windows=(128, 0) * 18,
    weight_dtype="mxfp4",
)
PROMPT = StepWork(prefill_tokens=1024, prefill_context=1024 * 512, logit_rows=1)
ROWS = StepWork(decode_rows=32, decode_context=32 * 1025, logit_rows=32)


def gpu(name: str, memory_gib: float = 79.6) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=int(memory_gib * 1024**3),
        memory_bytes_per_s=1e12,
        flops={"bfloat16": 1e14},
        link_bytes_per_s=1e10,
        link_latency_s=1e-5,
    )


def cost(shape: ModelShape, on: str = "H100", engine: str = "vllm") -> KernelStepCost:
    return PROFILER.step_cost(shape, gpu(on), engine, dtype="bfloat16", measure=None)


class TestAIConfigurator(ProfilerContract):
    @pytest.fixture
    def profiler(self) -> AIConfiguratorProfiler:
        return build(AIConfiguratorOptions())


@pytest.mark.parametrize(
    ("name", "shape", "tp"), [("Qwen/Qwen3-32B", QWEN3_32B, 2), ("openai/gpt-oss-120b", GPT_OSS_120B, 2)]
)
def test_a_whole_model_is_as_aiconfigurator_composes_it(name: str, shape: ModelShape, tp: int) -> None:
    """Its own models know these by name; ours by shape alone. The rest is smoothing."""
    from aiconfigurator_core.sdk import engine

    split: dict[str, Any] = {"moe_tp_size": tp, "moe_ep_size": 1} if shape.moe else {}
    whole = engine.EngineHandle.compile(
        name, "h100_sxm", "vllm", backend_version="0.24.0", tp_size=tp, **split
    )
    ours = cost(shape)
    decode = ours.step_s(ROWS, shape.layers, first=True, last=True, tp=tp)
    assert decode == pytest.approx(whole.predict_decode_latency(32, 1024) / 1e3, rel=0.03)
    prefill = ours.step_s(PROMPT, shape.layers, first=True, last=True, tp=tp)
    assert prefill == pytest.approx(whole.predict_prefill_latency(1, 1024) / 1e3, rel=0.03)


def test_tokens_of_prompts_and_rows_pass_the_same_products() -> None:
    """Not one after the other: AIConfigurator's estimate of mixed steps adds both up (its issue 1150)."""
    both = msgspec.structs.replace(PROMPT, decode_rows=32.0, decode_context=32 * 1025.0)
    mixed = cost(QWEN3_32B).step_parts(both, 64, first=False, last=False)
    alone = [cost(QWEN3_32B).step_parts(work, 64, first=False, last=False) for work in (PROMPT, ROWS)]
    assert mixed.attention_s == pytest.approx(sum(parts.attention_s for parts in alone))
    prompt = StepWork(prefill_tokens=1056)
    assert mixed.compute_s == cost(QWEN3_32B).step_parts(prompt, 64, first=False, last=False).compute_s
    assert mixed.compute_s < 0.9 * sum(parts.compute_s for parts in alone)


def test_all_reduce_over_pcie_outweighs_what_it_saves() -> None:
    """8.4 M bfloat16 on L40S: 0.89, 6.7, 15.8 ms at TP 2, 4, 8 were measured."""
    wide = msgspec.structs.replace(QWEN3_32B, hidden=4096, intermediate=12288)
    work = StepWork(prefill_tokens=2048, prefill_context=2048 * 1024)
    for tp, measured_s in ((2, 0.89e-3), (4, 6.7e-3), (8, 15.8e-3)):
        parts = cost(wide, "L40S").step_parts(work, 10, first=False, last=False, tp=tp)
        assert parts.allreduce_s == pytest.approx(20 * measured_s, rel=0.02)
        assert (parts.allreduce_s > parts.compute_s) == (tp > 2)


def test_ten_kv_heads_are_eight_of_more_rows() -> None:
    assert Heads.of(PHI_4, 1).in_powers_of_two() == Heads(query=32, kv=8, times=1.25)
    eight = msgspec.structs.replace(PHI_4, heads=32, kv_heads=8)
    ten_rows = StepWork(decode_rows=32, decode_context=32 * 1024)
    eight_rows = StepWork(decode_rows=40, decode_context=40 * 1024)
    ten_s = cost(PHI_4).step_parts(ten_rows, 40, first=False, last=False).attention_s
    eight_s = cost(eight).step_parts(eight_rows, 40, first=False, last=False).attention_s
    assert ten_s == pytest.approx(eight_s, rel=0.1)


def test_windows_bound_attention() -> None:
    """Half of the layers see 128 tokens: a long context costs about half of what full layers take."""
    full = msgspec.structs.replace(GPT_OSS_120B, windows=())
    long = StepWork(decode_rows=64, decode_context=64 * 32768)
    half_s = cost(GPT_OSS_120B).step_parts(long, 36, first=False, last=False).attention_s
    whole_s = cost(full).step_parts(long, 36, first=False, last=False).attention_s
    assert 0.5 < half_s / whole_s < 0.6
    assert full_layers(GPT_OSS_120B).tolist()[:5] == [0, 1, 1, 2, 2]


def test_a_window_that_no_kernel_was_measured_with_caps_the_context() -> None:
    odd = msgspec.structs.replace(GPT_OSS_120B, windows=(777,) * 36)
    full = msgspec.structs.replace(GPT_OSS_120B, windows=())
    assert cost(odd).tables(1).rows_in_window is None
    long = StepWork(decode_rows=8, decode_context=8 * 32768)
    short = StepWork(decode_rows=8, decode_context=8 * 777)
    capped = cost(odd).step_s(long, 36, first=False, last=False)
    assert capped == pytest.approx(cost(full).step_s(short, 36, first=False, last=False))


@pytest.mark.parametrize(
    ("shape", "on", "tp"),
    [(QWEN3_32B, "L40S", 2), (PHI_4, "A100-80GB", 1), (GPT_OSS_120B, "H100", 4)],
)
def test_no_time_falls_where_work_grows(shape: ModelShape, on: str, tp: int) -> None:
    rng = np.random.default_rng(3)
    most = {
        "prefill_tokens": 8192.0,
        "prefill_context": 3e7,
        "decode_rows": 512.0,
        "decode_context": 4e6,
        "logit_rows": 512.0,
    }
    base = {name: rng.uniform(0, high, (200, 1)) for name, high in most.items()}
    for name, high in most.items():
        ladder: Any = {**base, name: np.linspace(0, high, 60)[None, :]}
        seconds = np.asarray(cost(shape, on).step_s(StepWork(**ladder), 8, first=True, last=True, tp=tp))
        assert seconds.shape == (200, 60)
        assert np.diff(seconds, axis=1).min() >= -1e-12, name


@pytest.mark.parametrize("name", ["T4", "V100", "A10G", "L4"])
def test_gpus_without_measured_kernels_are_refused(name: str) -> None:
    with pytest.raises(ProfileError, match=f"no measured kernels of '{name}'") as caught:
        cost(QWEN3_32B, name)
    assert "L40S" in str(caught.value.mend)


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(ProfileError, match="GptOssForCausalLM on A100-80GB: not measured"):
        cost(GPT_OSS_120B, "A100-80GB")
    with pytest.raises(ProfileError, match="weights in mxfp4"):
        cost(msgspec.structs.replace(QWEN3_32B, weight_dtype="mxfp4"))
    with pytest.raises(ProfileError, match="KV in float32"):
        cost(msgspec.structs.replace(QWEN3_32B, kv_dtype="float32"))
    with pytest.raises(ProfileError, match=r"no tables of vllm 9\.9") as caught:
        build(AIConfiguratorOptions(version="9.9")).step_cost(
            QWEN3_32B, gpu("H100"), "vllm", dtype="bfloat16", measure=None
        )
    assert "current (0.24.0)" in str(caught.value.mend)


def test_degrees_between_and_beyond_what_was_measured() -> None:
    five = cost(PHI_4).step_parts(PROMPT, 40, first=False, last=False, tp=5)
    eight = cost(PHI_4).tables(5).reduce
    assert eight is not None
    assert five.allreduce_s == pytest.approx(80 * eight(1024))
    with pytest.raises(UnknownDegree, match="tensor parallel 64"):
        cost(QWEN3_32B).step_s(PROMPT, 64, first=True, last=True, tp=64)


def test_engine_version_and_memory() -> None:
    assert cost(QWEN3_32B).engine_version == "0.24.0"
    assert cost(QWEN3_32B, engine="torch").engine_version == "vllm 0.24.0"
    assert cost(QWEN3_32B, "A100-80GB").engine_version == "0.14.0"
    ours = cost(QWEN3_32B)
    whole = ours.weight_bytes(64, first=True, last=True, tied=False)
    assert whole == pytest.approx(2 * 32_762_123_264, rel=1e-3)
    assert ours.kv_token_bytes * 64 == 262_144
    oss = cost(GPT_OSS_120B).weight_bytes(36, first=True, last=True, tied=False)
    assert 62e9 < oss < 66e9
    assert ours.fixed_bytes == int((1 - 0.9) * gpu("H100").memory_bytes) + 1024**3


def test_float8_halves_the_weights_and_saves_time() -> None:
    small = msgspec.structs.replace(QWEN3_32B, weight_dtype="float8", kv_dtype="float8")
    assert cost(small).kv_token_bytes * 2 == cost(QWEN3_32B).kv_token_bytes
    for work in (PROMPT, ROWS):
        fast = cost(small).step_s(work, 64, first=True, last=True)
        assert 0.4 < fast / cost(QWEN3_32B).step_s(work, 64, first=True, last=True) < 0.85
