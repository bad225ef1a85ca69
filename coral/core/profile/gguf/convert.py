"""Reads one GGUF file and writes a Hugging Face model folder. Needs `gguf` and `tokenizers`, not torch."""

from __future__ import annotations

import json
from pathlib import Path

import gguf

from coral.core.profile.gguf.fields import Fields
from coral.core.profile.gguf.tensors import write_safetensors
from coral.core.profile.gguf.tokenizer import write_tokenizer
from coral.errors import SourceError

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
"""GGUF's `general.architecture`, and config.json's `architectures` and `model_type`."""


def convert(path: Path, folder: Path, *, weights: bool) -> None:
    """Writes into the existing `folder`. Raises SourceError for what cannot be converted exactly."""
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise SourceError(f"{path} is no readable GGUF file: {error}", mend="fetch it again") from error
    fields = Fields(path, reader)
    names = {tensor.name for tensor in reader.tensors}
    config = _config(path, fields, names)
    write_tokenizer(fields, folder)
    special = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")
    if weights:
        write_safetensors(path, reader, config, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _config(path: Path, fields: Fields, names: set[str]) -> dict[str, object]:
    arch = fields.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise SourceError(
            f"{path}: GGUF files of {arch!r} models are not converted",
            mend=f"known are {', '.join(ARCHITECTURES)}; take a safetensors checkpoint",
        )
    if f"{arch}.rope.scaling.type" in fields and fields.text(f"{arch}.rope.scaling.type") != "none":
        raise SourceError(f"{path}: its scaled rope is not converted", mend="take a safetensors checkpoint")
    if "rope_freqs.weight" in names or f"{arch}.expert_count" in fields:
        raise SourceError(
            f"{path}: its rope factors or experts are not converted", mend="take a safetensors checkpoint"
        )
    architecture, model_type = ARCHITECTURES[arch]
    hidden, heads = fields.integer(f"{arch}.embedding_length"), fields.integer(f"{arch}.attention.head_count")
    eps = fields.number(f"{arch}.attention.layer_norm_rms_epsilon")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": fields.integer(f"{arch}.feed_forward_length"),
        "num_hidden_layers": fields.integer(f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer(f"{arch}.attention.head_count_kv", heads),
        "head_dim": fields.integer(f"{arch}.attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": fields.integer(f"{arch}.context_length"),
        "rms_norm_eps": float(f"{eps:.6g}"),  # the file has it in fp32
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": fields.number(f"{arch}.rope.freq_base", 10_000.0),
        },
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": len(fields.texts("tokenizer.ggml.tokens")),
        "bos_token_id": fields.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.integer("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }
