from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from coral_engine_torch.engine import build
from coral_engine_torch.measure import cases
from coral_engine_torch.options import TorchOptions
from pydantic import ValidationError

from coral.types.hardware import Gpu
from coral.types.model import ModelShape, MoeShape
from coral.types.step import Measurements

CPU = Gpu(name="cpu", kind="cpu", memory_bytes=1 << 30, memory_bytes_per_s=1e10, flops={"float32": 1e10})


def shape(**fields: object) -> ModelShape:
    base = ModelShape(
        architecture="Qwen3MoeForCausalLM",
        layers=12,
        hidden=128,
        heads=4,
        kv_heads=2,
        head_dim=32,
        intermediate=256,
        vocab=1000,
        max_positions=4096,
        moe=MoeShape(experts=4, experts_per_token=2, intermediate=64),
        weight_dtype="float32",
        kv_dtype="float32",
        activation_dtype="float32",
    )
    return msgspec.structs.replace(base, **fields)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"architecture": "Gemma3ForCausalLM"}, "Gemma3ForCausalLM"),
        ({"weight_dtype": "mxfp4"}, "mxfp4"),
        ({"kv_dtype": "float8"}, "float8"),
        ({"kv_dtype": "bfloat16"}, "one dtype"),
    ],
)
def test_what_cannot_be_run_is_refused_when_the_plan_is_made(fields: dict[str, str], word: str) -> None:
    refusal = build(TorchOptions()).capabilities(shape(**fields), CPU).refusal
    assert refusal is not None
    assert word in refusal


def test_capabilities_follow_the_options() -> None:
    found = build(TorchOptions(block_size=8)).capabilities(shape(), CPU)
    assert (found.block_size, found.max_tp) == (8, 1)
    assert found.refusal is None
    assert build(TorchOptions()).capabilities(shape(architecture="qwen3_moe"), CPU).refusal is None
    with pytest.raises(ValidationError):
        TorchOptions(block_size=0)


def test_launch_bounds_threads_and_devices() -> None:
    launch = build(TorchOptions()).launch(("-m", "w"), threads=3, devices=(1, 2))
    assert launch.argv == (sys.executable, "-m", "w")
    assert launch.env["OMP_NUM_THREADS"] == "3"
    assert launch.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert launch.env["MALLOC_MMAP_THRESHOLD_"] == "33554432"  # glibc takes no more


def test_no_thread_computes_with_numbers_too_small_to_be_normal() -> None:
    code = (
        "import torch; from coral_engine_torch.threads import use_threads; use_threads(2);"
        "tiny = torch.full((1 << 20,), torch.finfo(torch.float32).tiny);"
        "assert torch.get_num_threads() == 2; assert not (tiny / 4).any(); assert tiny.all()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_coordinators_half_imports_no_torch() -> None:
    code = (
        "import sys, coral_engine_torch, coral_engine_torch.engine, coral_engine_torch.options;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_workers_half_imports_no_pydantic_and_no_transformers() -> None:
    code = (
        "import sys, coral_engine_torch, coral_engine_torch.runner;"
        "assert not {'pydantic', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("family", ["Qwen3MoeForCausalLM", "GptOssForCausalLM", "LlamaForCausalLM"])
def test_measuring_times_real_steps(family: str) -> None:
    moe = None if family.startswith("Llama") else MoeShape(experts=4, experts_per_token=2, intermediate=64)
    launch = build(TorchOptions()).measure(shape(architecture=family, moe=moe), CPU, "float32")
    assert launch is not None
    done = subprocess.run(
        launch.argv, env={**os.environ, **launch.env}, stdout=subprocess.PIPE, check=True, timeout=120
    )
    found = msgspec.json.decode(done.stdout, type=Measurements)
    assert found.engine == "torch"
    assert found.device == "cpu"
    assert found.kv_token_bytes == 2 * 2 * 32 * 4
    assert found.embed_bytes == 1000 * 128 * 4
    assert 100 << 20 < found.fixed_bytes < 500 << 20
    assert len({point.layers for point in found.points}) == 2
    assert {(point.first, point.last) for point in found.points} == {
        (False, False),
        (True, False),
        (False, True),
    }
    assert all(0 < point.seconds < 10 for point in found.points)
    most = max(found.points, key=lambda point: (point.work.prefill_tokens, point.layers))
    least = min(found.points, key=lambda point: (point.work.tokens, point.layers))
    assert most.seconds > least.seconds


def test_cases_stay_within_a_steps_limits() -> None:
    for tokens, requests in ((512, 64), (16, 1), (100, 4)):
        for case in cases(tokens, requests, (1, 3)):
            assert 1 <= case.work.tokens <= max(tokens, 16)
            assert len(case.rows) <= requests


def test_a_model_too_large_to_measure_says_so() -> None:
    launch = build(TorchOptions()).measure(shape(vocab=1_000_000_000), CPU, "float32")
    assert launch is not None
    done = subprocess.run(
        launch.argv, env={**os.environ, **launch.env}, stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert done.returncode == 1
    assert b"do not fit" in done.stderr
