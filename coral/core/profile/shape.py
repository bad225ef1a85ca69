"""Read a model's shape from its Hugging Face `config.json`: any decoder of attention and MLPs or experts.

Fields are read by whichever of their names a config has (Llama's, GPT-2's, Falcon's, DBRX's nested ones);
what they leave open, a model type's family decides (`TIED`, `UNGATED`). What a shape cannot say is refused
by the name of the field (`layout`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from coral.core.profile.fields import named, positive
from coral.core.profile.layout import check_kv, windows
from coral.core.profile.quantisation import weight_dtype
from coral.errors import SourceError
from coral.types.model import DTYPE_BYTES, ModelShape, MoeShape

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "n_head_kv", "multi_query_group_num")
HEAD_DIM = ("head_dim", "kv_channels")
INTERMEDIATE = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
VOCAB = ("vocab_size", "padded_vocab_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "ffn_hidden_size", "intermediate_size")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")

TIED = (
    "gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "starcoder2", "cohere", "cohere2",
    "gemma", "gemma2", "gemma3", "gemma3_text",
)  # fmt: skip
"""Model types whose head is the embedding where the config does not say."""
UNGATED = (
    "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "phi",
    "starcoder2", "persimmon", "nemotron", "codegen",
)  # fmt: skip
"""Model types whose MLP has two matrices; all others have a gate beside them."""
NESTED = ("text_config", "llm_config", "language_config")
"""Where configs of models that also see or hear keep their language model."""


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder that `source.resolve` gave."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", mend="check the model's source") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path} must hold a JSON object, it holds a {type(config).__name__}")
    return shape_of(config, str(path))


def shape_of(config: Mapping[str, Any], where: str = "config.json") -> ModelShape:
    """Shape from a decoded config.json. Raises SourceError naming the architecture or the field."""
    config = _language_model(config)
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise SourceError(
            f"{where}: model_type must name the architecture, found {kind!r}",
            mend="take a Hugging Face config.json, or give the model's `shape` in the config",
        )
    check_kv(config, where)
    layers = named(config, LAYERS, where)
    heads = named(config, HEADS, where)
    hidden = named(config, HIDDEN, where)
    dtype = _dtype(config)
    shape = ModelShape(
        architecture=_architecture(config, kind),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads, where),
        head_dim=named(config, HEAD_DIM, where, hidden // heads),
        intermediate=_intermediate(config, kind, hidden, where),
        vocab=named(config, VOCAB, where),
        max_positions=named(config, POSITIONS, where, 2048),
        tied_embeddings=bool(config.get("tie_word_embeddings", kind in TIED)),
        gated_mlp=kind not in UNGATED,
        moe=_moe(config, layers, where),
        windows=windows(config, layers, where),
        weight_dtype=weight_dtype(config, where) or dtype,
        kv_dtype=dtype,
        activation_dtype=dtype,
    )
    if shape.heads % shape.kv_heads:
        raise SourceError(
            f"{where}: {shape.heads} attention heads are no multiple of {shape.kv_heads} KV heads"
        )
    return shape


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


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with what its parts (language model, `attn_config`, `ffn_config`) hold on one level."""
    for name in NESTED:
        inner = config.get(name)
        if isinstance(inner, dict):
            outer = {k: v for k, v in config.items() if k in ("quantization_config", "dtype", "torch_dtype")}
            config = {**outer, **inner, "architectures": config.get("architectures")}
    parts = [config.get(name) for name in ("attn_config", "ffn_config")]
    return {**{k: v for part in parts if isinstance(part, dict) for k, v in part.items()}, **config}


def _architecture(config: Mapping[str, Any], kind: str) -> str:
    """The class that the config names, else the one that its model type usually has."""
    told = config.get("architectures")
    if isinstance(told, list) and told and isinstance(told[0], str):
        return told[0]
    return f"{''.join(part.capitalize() for part in kind.split('_'))}ForCausalLM"


def _kv_heads(config: Mapping[str, Any], heads: int, where: str) -> int:
    """All heads have KV of their own where the config says nothing; Falcon's first have one for all."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return named(config, KV_HEADS, where, heads)


def _intermediate(config: Mapping[str, Any], kind: str, hidden: int, where: str) -> int:
    """Four times the hidden size where a family without gates says nothing, as those do."""
    if "expansion_ratio" in config and isinstance(config["expansion_ratio"], int):
        return positive(config, "expansion_ratio", where) * hidden
    return named(config, INTERMEDIATE, where, 4 * hidden if kind in UNGATED else None)


def _dtype(config: Mapping[str, Any]) -> str:
    told = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return told if told in DTYPE_BYTES else "bfloat16"


def _moe(config: Mapping[str, Any], layers: int, where: str) -> MoeShape | None:
    """Experts, in every layer: a few dense layers are counted as ones with experts, which are larger.

    Raises SourceError where more than a tenth of the layers have none.
    """
    if not any(config.get(name) for name in EXPERTS):
        return None
    if named(config, EXPERTS, where) == 1:
        return None
    only = config.get("mlp_only_layers")
    dense = len(only) if isinstance(only, list) else 0
    dense = max(dense, int(config.get("first_k_dense_replace") or 0))
    if dense > layers / 10:
        field = "mlp_only_layers" if only else "first_k_dense_replace"
        raise SourceError(f"{where}: {field}: {dense} of {layers} layers have no experts, more than a tenth")
    width = named(config, EXPERT_WIDTH, where)
    shared = named(config, SHARED_COUNT, where, 0) * width
    return MoeShape(
        experts=named(config, EXPERTS, where),
        experts_per_token=named(config, CHOSEN, where),
        intermediate=width,
        shared_intermediate=named(config, SHARED_WIDTH, where, shared),
    )
