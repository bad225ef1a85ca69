from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from coral_engine_torch.architecture import read_architecture
from coral_engine_torch.budget import kv_blocks, weight_bytes
from coral_engine_torch.runner import load

from coral.errors import EngineError
from coral.testing.generation import cut
from coral.testing.tiny import FAMILIES
from coral.types.stage import StageSpec

MIB = 1 << 20


def blocks(memory: int, wanted: int | None = None) -> int:
    return kv_blocks(
        memory=memory * MIB,
        fixed=150 * MIB,
        weights=200 * MIB,
        workspace=50 * MIB,
        block=MIB,
        block_size=16,
        model_len=1000,
        wanted=wanted,
        where="n1",
    )


def test_kv_takes_what_is_left() -> None:
    assert blocks(500) == 100
    assert blocks(463) == 63
    assert blocks(500, wanted=7) == 7


def test_too_little_memory_says_what_fits() -> None:
    with pytest.raises(EngineError, match=r"n1: .*1000 tokens .* room for 992 tokens") as refused:
        blocks(462)
    assert refused.value.mend is not None
    assert "max_model_len to 992" in refused.value.mend
    assert "1 MiB more" in refused.value.mend
    with pytest.raises(EngineError, match="room for 0 tokens"):
        blocks(100)
    with pytest.raises(EngineError, match="8 KV blocks do not fit; there is room for 5"):
        blocks(405, wanted=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_known_before_they_are_read(family: str, stage_of: Callable[..., StageSpec]) -> None:
    stage = stage_of(family)
    arch = read_architecture(Path(stage.source))
    for part in (stage, *cut(stage, 1, 3)):
        layers = part.end_layer - part.first_layer
        expected = weight_bytes(arch, layers, 4, first=part.is_first, last=part.is_last)
        assert load(part).stats().weight_bytes == expected


def test_a_stage_that_does_not_fit_is_refused_before_it_is_read(stage_of: Callable[..., StageSpec]) -> None:
    with pytest.raises(EngineError, match="give the node") as refused:
        load(stage_of("llama", memory_bytes=10 * MIB))
    assert "room for 0" in refused.value.message


HELD = """
import json, sys, threading
import msgspec
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import Chunk, StageSpec

def held():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10

from coral_engine_torch.runner import load
spec = msgspec.json.decode(sys.argv[1], type=StageSpec)
runner = load(spec)
peak, stop = [0], threading.Event()
def watch():
    while not stop.wait(0.001):
        peak[0] = max(peak[0], held())
threading.Thread(target=watch).start()
sampling = Sampling(temperature=1.0, top_p=0.9, logprobs=5, max_tokens=50, presence_penalty=1.0)
length = spec.max_model_len
fit = min(spec.max_step_requests, runner.capacity().blocks * runner.capacity().block_size // length)
names = [str(i) for i in range(fit)]
prompt = (5,) * (length - 5)
for name in names:
    runner.open(GenerateRequest(id=name, model="m", prompt_ids=prompt, sampling=sampling), length)
for name in names:
    for at in range(0, length - 5, spec.max_step_tokens):
        n = min(spec.max_step_tokens, length - 5 - at)
        runner.step([Chunk(request=name, start=at, n=n, token_ids=(5,) * n)])
for i in range(3):
    runner.step([Chunk(request=name, start=length - 5 + i, n=1, token_ids=(6,)) for name in names])
stop.set()
print(json.dumps([peak[0], runner.capacity().blocks, fit]))
"""


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_memory_is_kept_by_a_real_process(family: str, stage_of: Callable[..., StageSpec]) -> None:
    """Filled to the last block, in steps as large as allowed, it never holds more than it was given."""
    memory = 400 * MIB
    stage = stage_of(family, memory_bytes=memory, options={}, max_model_len=512, max_step_requests=64)
    done = subprocess.run(
        [sys.executable, "-c", HELD, msgspec.json.encode(stage).decode()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=200,
    )
    peak, count, fit = msgspec.json.decode(done.stdout, type=tuple[int, int, int])
    assert count > 100
    assert fit >= 32
    assert peak <= memory
    assert peak > memory / 2, "the budget is not far from what is used"
