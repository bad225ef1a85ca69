"""Shapes out of `config.json`, and what they weigh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coral.core.profile import weights
from coral.core.profile.shape import read_shape, shape_of, with_dtype
from coral.errors import SourceError
from coral.types.model import ModelShape, MoeShape

DATA = Path(__file__).parents[4] / "shared" / "data" / "model_configs"

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("phi3", "Phi3ForCausalLM"),
        ("gpt_oss", "GptOssForCausalLM"),
    ],
)
def test_an_architecture_is_named_by_its_type_where_the_config_does_not(kind: str, architecture: str) -> None:
    shape = shape_of({**BASE, "model_type": kind})
    assert shape.architecture == architecture
    assert shape_of({**BASE, "model_type": kind, "architectures": ["Own"]}).architecture == "Own"
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (4, 4, 2, 16)
    assert shape.tied_embeddings
    assert shape.weight_dtype == shape.kv_dtype == "float32"


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(SourceError, match=field):
        shape_of({key: value for key, value in BASE.items() if key != field})


def test_experts_windows_and_quantisation_of_gpt_oss() -> None:
    shape = shape_of(
        {
            **BASE,
            "model_type": "gpt_oss",
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "quantization_config": {"quant_method": "mxfp4"},
            "torch_dtype": "bfloat16",
        }
    )
    assert shape.moe == MoeShape(experts=32, experts_per_token=4, intermediate=128)
    assert shape.windows == (128, 0, 128, 0)
    assert (shape.weight_dtype, shape.kv_dtype) == ("mxfp4", "bfloat16")
    assert with_dtype(shape, "bfloat16").weight_dtype == "mxfp4"
    assert with_dtype(shape, "float32").weight_dtype == "float32"


def test_layer_types_and_switched_off_windows() -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    assert shape_of({**BASE, "sliding_window": 64, "layer_types": kinds}).windows == (0, 64, 0, 64)
    assert shape_of({**BASE, "sliding_window": 64, "use_sliding_window": False}).windows == ()
    assert shape_of({**BASE, "model_type": "mistral", "sliding_window": 64}).windows == (64,) * 4


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SourceError, match="not JSON"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    assert read_shape(tmp_path).layers == 4


@pytest.mark.parametrize(
    "name",
    [
        "llama2-70b",
        "llama3-70b",
        "phi-4",
        "qwen3-32b",
        "qwen3-235b-a22b",
        "gpt-oss-20b",
        "gpt-oss-120b",
        "smollm2-135m-instruct",
    ],
)
def test_counted_parameters_are_the_models(name: str) -> None:
    path = DATA / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not at hand")
    told = json.loads(path.read_text())
    moe = told["moe"] and MoeShape(
        experts=told["moe"]["num_experts"],
        experts_per_token=told["moe"]["experts_per_token"],
        intermediate=told["moe"]["moe_intermediate_size"],
    )
    shape = ModelShape(
        architecture="any",
        layers=told["num_layers"],
        hidden=told["hidden_size"],
        heads=told["num_heads"],
        kv_heads=told["num_kv_heads"],
        head_dim=told.get("head_dim") or told["hidden_size"] // told["num_heads"],
        intermediate=told["intermediate_size"],
        vocab=told["vocab_size"],
        max_positions=told["max_position_embeddings"],
        tied_embeddings=told["tie_word_embeddings"],
        moe=moe,
    )
    parts = weights.layer_weights(shape)
    tables = (1 if shape.tied_embeddings else 2) * shape.vocab * shape.hidden
    assert shape.layers * parts.parameters(shape) + tables == pytest.approx(told["params_total"], rel=3e-3)
    assert shape.layers * parts.active(shape) + tables == pytest.approx(
        told["params_active_per_token"], rel=3e-3
    )
    assert shape.layers * weights.kv_token_bytes(shape) == told["kv_bytes_per_token_all_layers_fp16"]
    assert weights.model_bytes(msgspec.structs.replace(shape, weight_dtype="float32")) == pytest.approx(
        4 * told["params_total"], rel=3e-3
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": ["llama"]}, "architecture"),
        ({"num_key_value_heads": 3}, "4 attention heads are no multiple of 3 KV heads"),
        ({"num_key_value_heads": "x"}, "num_key_value_heads must be a positive integer, found 'x'"),
        ({"head_dim": -8}, "head_dim must be a positive integer, found -8"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, found True"),
        ({"num_experts": "many", "num_experts_per_tok": 2}, "num_experts must be a positive integer"),
        ({"sliding_window": "x"}, "sliding_window must be a positive integer"),
        (
            {"sliding_window": 8, "layer_types": ["sliding_attention"]},
            "layer_types must be a list of 4",
        ),
    ],
)
def test_a_malformed_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        shape_of({**BASE, **changes})


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(SourceError, match="must hold a JSON object, it holds a list"):
        read_shape(tmp_path)


def test_an_unknown_quantization_section_is_none() -> None:
    assert shape_of({**BASE, "quantization_config": [1]}).weight_dtype == "float32"
