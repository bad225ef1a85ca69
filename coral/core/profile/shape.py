"""Read a model's shape from its Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from coral.errors import SourceError
from coral.types.model import DTYPE_BYTES, ModelShape, MoeShape

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
"""`model_type` of a config.json and the architecture it names; all have gated MLPs and GQA."""


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder that `source.resolve` gave."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", mend="check the model's source") from error
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path} must hold a JSON object, it holds a {type(config).__name__}")
    return shape_of(config, str(path))


def shape_of(config: Mapping[str, Any], where: str = "config.json") -> ModelShape:
    """Shape from a decoded config.json. Raises SourceError naming the architecture or the field."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        named = kind or config.get("architectures") or "none"
        raise SourceError(
            f"{where}: architecture {named!r} is not known",
            mend=f"known are: {', '.join(sorted(ARCHITECTURES))}; or give the model's `shape` in the config",
        )
    layers = _int(config, "num_hidden_layers", where)
    heads = _int(config, "num_attention_heads", where)
    hidden = _int(config, "hidden_size", where)
    dtype = _dtype(config)
    return ModelShape(
        architecture=ARCHITECTURES[kind],
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_int(config, "num_key_value_heads", where, heads),
        head_dim=_int(config, "head_dim", where, hidden // heads),
        intermediate=_int(config, "intermediate_size", where),
        vocab=_int(config, "vocab_size", where),
        max_positions=_int(config, "max_position_embeddings", where, 2048),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        moe=_moe(config, where),
        windows=_windows(config, layers, where),
        weight_dtype=_quantised(config) or dtype,
        kv_dtype=dtype,
        activation_dtype=dtype,
    )


def with_dtype(shape: ModelShape, dtype: str | None) -> ModelShape:
    """The shape served in another dtype; quantised weights stay as they are in bfloat16 or float16."""
    if dtype is None:
        return shape
    if dtype not in DTYPE_BYTES:
        raise SourceError(f"dtype {dtype!r} is not known", mend=f"known are: {', '.join(DTYPE_BYTES)}")
    quantised = DTYPE_BYTES.get(shape.weight_dtype, 2.0) < 2.0 and dtype in ("bfloat16", "float16")
    weight = shape.weight_dtype if quantised else dtype
    active = "bfloat16" if DTYPE_BYTES[dtype] < 2.0 else dtype
    return msgspec.structs.replace(shape, weight_dtype=weight, kv_dtype=active, activation_dtype=active)


def _int(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """A positive integer; `default`, where there is one, for a key that is missing, null or 0."""
    value = config.get(key)
    if not value and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SourceError(f"{where}: {key} must be a positive integer, found {value!r}")
    return value


def _dtype(config: Mapping[str, Any]) -> str:
    named = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return named if named in DTYPE_BYTES else "bfloat16"


def _quantised(config: Mapping[str, Any]) -> str | None:
    section = config.get("quantization_config")
    method = section.get("quant_method") if isinstance(section, dict) else None
    return {"mxfp4": "mxfp4", "fp8": "float8"}.get(str(method))


def _moe(config: Mapping[str, Any], where: str) -> MoeShape | None:
    key = "num_local_experts" if config.get("num_local_experts") else "num_experts"
    if not config.get(key):
        return None
    dense = _int(config, "intermediate_size", where)
    return MoeShape(
        experts=_int(config, key, where),
        experts_per_token=_int(config, "num_experts_per_tok", where),
        intermediate=_int(config, "moe_intermediate_size", where, dense),
        shared_intermediate=_int(config, "shared_expert_intermediate_size", where, 0),
    )


def _windows(config: Mapping[str, Any], layers: int, where: str) -> tuple[int, ...]:
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ()
    window = _int(config, "sliding_window", where)
    kinds = config.get("layer_types")
    if kinds:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise SourceError(f"{where}: layer_types must be a list of {layers} kinds, one a layer")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if config.get("model_type") == "gpt_oss":
        return tuple(window if layer % 2 == 0 else 0 for layer in range(layers))
    return (window,) * layers
