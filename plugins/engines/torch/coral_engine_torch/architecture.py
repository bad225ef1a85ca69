"""What a model's config.json says, as far as running its layers needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from coral.errors import EngineError
from coral.types.model import ModelShape

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Phi3ForCausalLM": "phi3",
    "GptOssForCausalLM": "gpt_oss",
}
"""`architectures` of config.json, and its `model_type`."""

_ROPE_THETA = {"gpt_oss": 150_000.0}
_OPTIONAL_WINDOW = ("qwen2", "qwen3", "qwen3_moe")  # only where use_sliding_window says so


def family_of(name: str) -> str | None:
    """The family of an architecture (`LlamaForCausalLM`) or model type (`llama`); None = unknown."""
    return FAMILIES.get(name, name if name in FAMILIES.values() else None)


class Architecture(Struct, frozen=True, kw_only=True):
    """Sizes and switches of one model. `windows`: per layer the attention window, 0 = full."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    norm_eps: float
    tied: bool
    windows: tuple[int, ...]
    rope: dict[str, Any]
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    renormalise_experts: bool = True
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    @property
    def qk_norm(self) -> bool:
        return self.family in ("qwen3", "qwen3_moe")

    @property
    def sinks(self) -> bool:
        return self.family == "gpt_oss"


def read_architecture(folder: Path) -> Architecture:
    """From `folder`/config.json. Raises EngineError where it is missing or of a kind we do not run."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(
            f"{path} cannot be read: {error}", mend="name a Hugging Face model folder"
        ) from error
    names = [*(config.get("architectures") or ()), config.get("model_type", "")]
    family = next((family_of(name) for name in names if family_of(name)), None)
    if family is None:
        raise EngineError(
            f"{path}: the torch engine does not run {', '.join(filter(None, names)) or 'this model'}",
            mend=f"it runs {', '.join(FAMILIES)}",
        )
    if config.get("quantization_config"):
        raise EngineError(
            f"{path}: the torch engine runs no quantised weights",
            mend="take an unquantised checkpoint of the model",
        )
    try:
        return parse(config, family)
    except KeyError as error:
        raise EngineError(f"{path} lacks {error}") from error


def parse(config: dict[str, Any], family: str) -> Architecture:
    """From the content of a config.json; KeyError where a size is missing."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    moe = family in ("qwen3_moe", "gpt_oss")
    return Architecture(
        family=family,
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        max_positions=int(config["max_position_embeddings"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        windows=_windows(config, family),
        rope=_rope(config, family),
        experts=int(config.get("num_experts") or config.get("num_local_experts") or 0) if moe else 0,
        experts_per_token=int(config["num_experts_per_tok"]) if moe else 0,
        expert_intermediate=int(config.get("moe_intermediate_size") or config["intermediate_size"])
        if moe
        else 0,
        renormalise_experts=bool(config.get("norm_topk_prob", False)),
        swiglu_alpha=float(config.get("swiglu_alpha", 1.702)),
        swiglu_limit=float(config.get("swiglu_limit", 7.0)),
    )


def _windows(config: dict[str, Any], family: str) -> tuple[int, ...]:
    layers, window = int(config["num_hidden_layers"]), int(config.get("sliding_window") or 0)
    if family == "llama" or (family in _OPTIONAL_WINDOW and not config.get("use_sliding_window")):
        window = 0
    if kinds := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if family == "gpt_oss":
        return tuple(0 if layer % 2 else window for layer in range(layers))
    first = int(config.get("max_window_layers", 0)) if family in _OPTIONAL_WINDOW else 0
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _rope(config: dict[str, Any], family: str) -> dict[str, Any]:
    """One dictionary, whether the file has `rope_parameters` (new) or `rope_theta` and `rope_scaling`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    rope.setdefault("rope_theta", config.get("rope_theta") or _ROPE_THETA.get(family, 10_000.0))
    rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or config["max_position_embeddings"]
    return rope


def from_shape(shape: ModelShape) -> Architecture:
    """An architecture with the sizes of `shape`, for timing: rope and norms are of the plain kind.

    Raises EngineError where the family is not known.
    """
    family = family_of(shape.architecture)
    if family is None:
        raise EngineError(
            f"the torch engine does not run {shape.architecture}", mend=f"it runs {', '.join(FAMILIES)}"
        )
    moe = shape.moe
    return Architecture(
        family=family,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        vocab=shape.vocab,
        max_positions=shape.max_positions,
        norm_eps=1e-6,
        tied=shape.tied_embeddings,
        windows=shape.windows or (0,) * shape.layers,
        rope={"rope_type": "default", "rope_theta": 10_000.0},
        experts=moe.experts if moe else 0,
        experts_per_token=moe.experts_per_token if moe else 0,
        expert_intermediate=moe.intermediate if moe else 0,
    )
