from __future__ import annotations

from typing import Any

import pytest
import torch
from coral_engine_torch.architecture import Architecture, parse
from coral_engine_torch.rope import inverse_frequencies

from coral.errors import EngineError

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "beta_fast": 20,
        "beta_slow": 2,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "short_factor": [1.0 + i / 10 for i in range(16)],
        "long_factor": [2.0 + i for i in range(16)],
        "original_max_position_embeddings": 128,
    },
}


def config_of(kind: str) -> dict[str, Any]:
    rope = {"rope_type": kind, "rope_theta": 50_000.0, **KINDS[kind]}
    return {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 192,
        "vocab_size": 100,
        "max_position_embeddings": 1024,
        "rope_parameters": rope,
    }


def architecture(kind: str) -> Architecture:
    return parse(config_of(kind), "llama")


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_those_of_transformers(kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    published = ROPE_INIT_FUNCTIONS[KINDS[kind].get("rope_type", kind)]
    for length in (100, 1000):
        expected, factor = published(LlamaConfig(**config_of(kind)), torch.device("cpu"), seq_len=length)
        found, found_factor = inverse_frequencies(architecture(kind), length)
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
        assert found_factor == pytest.approx(factor)


def test_old_and_new_spellings_mean_the_same() -> None:
    new = config_of("llama3")
    old = {**new, "rope_theta": 50_000.0, "rope_scaling": {"type": "llama3", **KINDS["llama3"]}}
    del old["rope_parameters"]
    ours, theirs = inverse_frequencies(parse(old, "llama"), 64), inverse_frequencies(parse(new, "llama"), 64)
    assert torch.equal(ours[0], theirs[0])


def test_an_unknown_kind_is_refused() -> None:
    config = config_of("linear")
    config["rope_parameters"]["rope_type"] = "dynamic"
    with pytest.raises(EngineError, match="dynamic"):
        inverse_frequencies(parse(config, "llama"), 64)
