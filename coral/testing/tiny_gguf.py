"""A tiny random GGUF model, for tests."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from coral.testing.tiny import CHAT_TEMPLATE

HIDDEN, INNER, HEADS, KV_HEADS, WIDTH, LAYERS = 128, 192, 4, 2, 32, 2


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    vocabulary: str = "gpt2",
    words: str = "smollm",
    quantised: bool = False,
) -> None:
    """A llama of 2 layers with tied embeddings and a byte-level vocabulary; `quantised`: matrices in Q8_0."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|pad|>", "<|im_start|>", "<|im_end|>", *alphabet, "it", "is", "42"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(50_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(vocabulary)
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["i t", "i s", "4 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    generator = np.random.default_rng(0)
    for name, shape in _shapes(len(tokens)).items():
        values = generator.normal(size=shape, scale=0.1).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        if quantised and len(shape) > 1:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {
            block + "attn_norm.weight": (HIDDEN,),
            block + "attn_q.weight": (HEADS * WIDTH, HIDDEN),
            block + "attn_k.weight": (KV_HEADS * WIDTH, HIDDEN),
            block + "attn_v.weight": (KV_HEADS * WIDTH, HIDDEN),
            block + "attn_output.weight": (HIDDEN, HEADS * WIDTH),
            block + "ffn_norm.weight": (HIDDEN,),
            block + "ffn_gate.weight": (INNER, HIDDEN),
            block + "ffn_up.weight": (INNER, HIDDEN),
            block + "ffn_down.weight": (HIDDEN, INNER),
        }
    return shapes
