from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coral.errors import SourceError

gguf = pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
from coral.core.profile.gguf.convert import convert  # noqa: E402
from coral.testing.tiny_gguf import write_gguf  # noqa: E402


@pytest.fixture
def converted(tmp_path: Path) -> Callable[..., Path]:
    def make(**changes: Any) -> Path:
        path = tmp_path / "sample.gguf"
        write_gguf(path, **changes)
        folder = tmp_path / "out"
        folder.mkdir()
        convert(path, folder, weights=True)
        return folder

    return make


@pytest.mark.parametrize("quantised", [False, True], ids=["fp32", "q8"])
def test_weights_equal_those_that_transformers_reads(
    quantised: bool, converted: Callable[..., Path], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers needs it to read GGUF files")
    folder = converted(quantised=quantised)
    expected = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="sample.gguf", dtype=torch.float32
    ).state_dict()
    found = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_config_says_what_the_header_says(converted: Callable[..., Path]) -> None:
    config = json.loads((converted() / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 50_000.0}
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 32)
    assert "quantization_config" not in config


def test_text_goes_there_and_back(converted: Callable[..., Path]) -> None:
    from tokenizers import Tokenizer

    folder = converted()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("<|im_start|>it is 42<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "it is 42"
    four, two = tokenizer.encode("4").ids, tokenizer.encode("2").ids
    assert tokenizer.encode("42").ids == four + two, "smollm cuts digits apart"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    assert "messages" in settings["chat_template"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architecture": "mamba"}, "mamba"),
        ({"words": "unheard-of"}, "unheard-of"),
        ({"vocabulary": "llama"}, "vocabulary of kind 'llama'"),
    ],
)
def test_what_cannot_be_converted_exactly_is_refused(
    changes: dict[str, str], word: str, converted: Callable[..., Path]
) -> None:
    with pytest.raises(SourceError, match=word):
        converted(**changes)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no gguf at all" * 10)
    with pytest.raises(SourceError, match="no readable GGUF"):
        convert(path, tmp_path, weights=False)
