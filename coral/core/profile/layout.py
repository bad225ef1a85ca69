"""How a model's layers keep KV, from its `config.json`: windows per layer, and what cannot be counted.

A `ModelShape` knows attention that keeps K and V of `kv_heads x head_dim` per token, over all of a sequence
or over a window. Whatever keeps something else (latent KV, recurrent state, layers that share KV) is
refused by the name of the field that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coral.core.profile.fields import positive
from coral.errors import SourceError

OTHER_KV: Mapping[str, str] = {
    "kv_lora_rank": "latent KV (MLA)",
    "mamba_d_state": "state-space layers",
    "mamba_d_ssm": "state-space layers",
    "ssm_cfg": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "attn_layer_period": "state-space layers between attention",
    "hybrid_override_pattern": "state-space layers between attention",
    "layers_block_type": "recurrent layers between attention",
    "block_types": "recurrent layers between attention",
    "linear_key_head_dim": "linear attention",
    "linear_attn_config": "linear attention",
    "conv_L_cache": "convolution layers between attention",
    "attention_hidden_size": "recurrent layers (RWKV)",
    "num_kv_shared_layers": "layers that share KV",
    "cla_share_factor": "layers that share KV",
    "block_configs": "layers of different sizes",
    "cross_attention_layers": "cross-attention",
    "interleave_moe_layer_step": "experts in every so many layers",
    "decoder_sparse_step": "experts in every so many layers",
    "moe_layer_frequency": "experts in every so many layers",
    "dense_attention_every_n_layers": "block-sparse attention",
}
"""Fields of `config.json` that say a model's layers keep or hold something a shape cannot, and what."""
_ONE_IS_NONE = (
    "interleave_moe_layer_step",
    "decoder_sparse_step",
    "moe_layer_frequency",
    "cla_share_factor",
    "attn_layer_period",
)
PATTERNS: Mapping[str, int] = {"gpt_oss": 2, "gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}
"""Model types whose layers alternate without saying so: every n-th has full attention."""
FULL = ("full_attention", "attention", "global_attention", "global")
SLIDING = ("sliding_attention", "local_attention", "local", "sliding")
CHUNKED = "chunked_attention"


def check_kv(config: Mapping[str, Any], where: str) -> None:
    """Raises SourceError naming the field, where layers keep something other than K and V per token."""
    for field, what in OTHER_KV.items():
        value = config.get(field)
        if value and not (field in _ONE_IS_NONE and value == 1):
            raise SourceError(
                f"{where}: {field} says {what}: how much such layers hold is not known here",
                mend="take another model, or give its `shape` in the config where that bounds what it holds",
            )
    kinds = config.get("attn_type_list")  # MiniMax: 1 is attention, 0 linear attention
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise SourceError(f"{where}: attn_type_list says linear attention: what it keeps is not known here")
    if config.get("is_encoder_decoder"):
        raise SourceError(f"{where}: is_encoder_decoder: only decoders are served")


def windows(config: Mapping[str, Any], layers: int, where: str) -> tuple[int, ...]:
    """Per layer the window in tokens, 0 for full attention; empty where all are full."""
    kinds = config.get("layer_types")
    if kinds is not None:
        return _by_kind(config, kinds, layers, where)
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ()
    window = positive(config, "sliding_window", where)
    pattern = config.get("sliding_window_pattern") or PATTERNS.get(str(config.get("model_type")))
    if isinstance(pattern, str):  # "LLLG": local and global
        return tuple(0 if pattern[i % len(pattern)].upper() == "G" else window for i in range(layers))
    if pattern is not None:
        every = positive({"sliding_window_pattern": pattern}, "sliding_window_pattern", where)
        return tuple(0 if (layer + 1) % every == 0 else window for layer in range(layers))
    if config.get("use_sliding_window"):  # Qwen2: the layers below are full
        full = config.get("max_window_layers", 0)
        return tuple(window if layer >= full else 0 for layer in range(layers))
    return (window,) * layers


def _by_kind(config: Mapping[str, Any], kinds: Any, layers: int, where: str) -> tuple[int, ...]:
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise SourceError(f"{where}: layer_types must be a list of {layers} kinds, one a layer")
    strange = next((kind for kind in kinds if kind not in (*FULL, *SLIDING, CHUNKED)), None)
    if strange is not None:
        raise SourceError(
            f"{where}: layer_types names {strange!r}: how much such a layer keeps is not known here",
            mend=f"known are: {', '.join((*FULL, *SLIDING, CHUNKED))}",
        )
    found = tuple(_window_of(kind, config, where) for kind in kinds)
    return found if any(found) else ()


def _window_of(kind: str, config: Mapping[str, Any], where: str) -> int:
    if kind in FULL:
        return 0
    return positive(config, "attention_chunk_size" if kind == CHUNKED else "sliding_window", where)
