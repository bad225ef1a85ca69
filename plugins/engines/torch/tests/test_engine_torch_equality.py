"""Every family, cut in several ways, gives the tokens of the whole Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coral_engine_torch.runner import load

from coral.testing.generation import Route, cut, tokens
from coral.testing.tiny import FAMILIES
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import StageSpec

NEW = 10
LENGTHS = (5, 60, 33)  # two of them longer than the tiny models' windows


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(3, 259, (n,), generator=generator).tolist()) for n in LENGTHS]


def requests(sampling: Sampling | None = None) -> list[GenerateRequest]:
    greedy = sampling or Sampling(temperature=0.0, max_tokens=NEW)
    return [
        GenerateRequest(id=str(i), model="tiny", prompt_ids=p, sampling=greedy)
        for i, p in enumerate(prompts())
    ]


@pytest.fixture(scope="module")
def reference(tiny_models: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """Greedy tokens of the whole model by transformers, each prompt alone and without a cache."""
    found: dict[str, list[list[int]]] = {}

    def tokens_of(family: str) -> list[list[int]]:
        if family not in found:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(
                tiny_models(family), dtype=torch.float32, attn_implementation="eager"
            )
            found[family] = [_greedy(model, prompt) for prompt in prompts()]
        return found[family]

    return tokens_of


@torch.inference_mode()
def _greedy(model: Callable[..., object], prompt: tuple[int, ...]) -> list[int]:
    known = list(prompt)
    for _ in range(NEW):
        logits = model(torch.tensor([known]), use_cache=False).logits  # type: ignore[attr-defined]
        known.append(int(logits[0, -1].argmax()))
    return known[len(prompt) :]


@pytest.mark.parametrize("bounds", [(), (1,), (1, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_stages_give_the_whole_models_tokens(
    family: str,
    bounds: tuple[int, ...],
    stage_of: Callable[..., StageSpec],
    reference: Callable[[str], list[list[int]]],
) -> None:
    route = Route.loaded(load, cut(stage_of(family), *bounds))
    found = route.generate(requests(), chunk=25)  # chunks of two prompts run beside decode rows of the third
    assert [tokens(found[str(i)]) for i in range(len(LENGTHS))] == reference(family)
    for runner in route.runners:
        assert runner.stats().free_blocks == runner.stats().total_blocks
    route.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["qwen2", "gpt_oss"])
def test_half_precision_stages_equal_the_single_stage(
    family: str, dtype: str, stage_of: Callable[..., StageSpec]
) -> None:
    """Hidden rows cross the cut bit for bit; the batches are the same, so are the tokens."""
    stage = stage_of(family, dtype=dtype)
    one = Route.loaded(load, [stage]).generate(requests())
    two = Route.loaded(load, cut(stage, 2)).generate(requests())
    assert two == one


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stage_reads_only_its_own_tensors(family: str, stage_of: Callable[..., StageSpec]) -> None:
    stage = stage_of(family)
    size = sum(path.stat().st_size for path in Path(stage.source).glob("*.safetensors"))
    whole = load(stage).stats()
    assert whole.bytes_read == whole.weight_bytes < size < whole.bytes_read + 20_000
    parts = [load(part).stats() for part in cut(stage, 1, 3)]
    assert all(part.bytes_read == part.weight_bytes for part in parts)
    assert whole.load_seconds > 0
    assert parts[1].bytes_read < whole.bytes_read / 2
