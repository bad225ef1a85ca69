"""Shapes of many families of decoders out of their own `config.json`, cut to what is read; what is refused.

Parameters are the models' published counts where they are known, in billions.
"""

from __future__ import annotations

from typing import Any

import pytest

from coral.core.profile import weights
from coral.core.profile.shape import shape_of
from coral.errors import SourceError
from coral.types.model import ModelShape, MoeShape

CONFIGS: dict[str, tuple[dict[str, Any], float]] = {
    "Llama-3.1-8B": (
        {
            "model_type": "llama",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
        },
        8.03,
    ),
    "Mixtral-8x7B": (
        {
            "model_type": "mixtral",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        46.7,
    ),
    "Qwen2.5-7B": (
        {
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "max_window_layers": 28,
        },
        7.62,
    ),
    "Qwen1.5-MoE-A2.7B": (
        {
            "model_type": "qwen2_moe",
            "num_hidden_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "decoder_sparse_step": 1,
            "vocab_size": 151936,
        },
        14.3,
    ),
    "gpt2": (
        {
            "model_type": "gpt2",
            "n_layer": 12,
            "n_embd": 768,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        0.124,
    ),
    "opt-6.7b": (
        {
            "model_type": "opt",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "ffn_dim": 16384,
            "vocab_size": 50272,
        },
        6.66,
    ),
    "pythia-6.9b": (
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "intermediate_size": 16384,
            "vocab_size": 50432,
            "tie_word_embeddings": False,
        },
        6.86,
    ),
    "gpt-j-6b": (
        {
            "model_type": "gptj",
            "n_layer": 28,
            "n_embd": 4096,
            "n_head": 16,
            "n_inner": None,
            "vocab_size": 50400,
            "tie_word_embeddings": False,
        },
        6.05,
    ),
    "bloom-7b1": (
        {"model_type": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32, "vocab_size": 250880},
        7.07,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 32,
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "vocab_size": 65024,
        },
        6.92,
    ),
    "falcon-40b": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 60,
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "multi_query": True,
            "new_decoder_architecture": True,
            "vocab_size": 65024,
        },
        41.3,
    ),
    "starcoder2-7b": (
        {
            "model_type": "starcoder2",
            "num_hidden_layers": 32,
            "hidden_size": 4608,
            "num_attention_heads": 36,
            "num_key_value_heads": 4,
            "intermediate_size": 18432,
            "vocab_size": 49152,
            "sliding_window": 4096,
        },
        7.17,
    ),
    "phi-3-mini": (
        {
            "model_type": "phi3",
            "num_hidden_layers": 32,
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 8192,
            "vocab_size": 32064,
            "sliding_window": 2047,
        },
        3.82,
    ),
    "phi-2": (
        {
            "model_type": "phi",
            "num_hidden_layers": 32,
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "intermediate_size": 10240,
            "vocab_size": 51200,
        },
        2.78,
    ),
    "gemma-2-9b": (
        {
            "model_type": "gemma2",
            "num_hidden_layers": 42,
            "hidden_size": 3584,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "intermediate_size": 14336,
            "vocab_size": 256000,
            "sliding_window": 4096,
        },
        9.24,
    ),
    "gemma-3-27b": (
        {
            "model_type": "gemma3",
            "architectures": ["Gemma3ForConditionalGeneration"],
            "torch_dtype": "bfloat16",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 62,
                "hidden_size": 5376,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "intermediate_size": 21504,
                "vocab_size": 262208,
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        },
        27.0,
    ),
    "granite-3-8b": (
        {
            "model_type": "granite",
            "num_hidden_layers": 40,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 12800,
            "vocab_size": 49155,
            "tie_word_embeddings": True,
        },
        8.17,
    ),
    "OLMo-2-7B": (
        {
            "model_type": "olmo2",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 100352,
        },
        7.30,
    ),
    "OLMoE-1B-7B": (
        {
            "model_type": "olmoe",
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 1024,
            "vocab_size": 50304,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        6.92,
    ),
    "c4ai-command-r7b": (
        {
            "model_type": "cohere2",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 256000,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        8.03,
    ),
    "GLM-4-9B": (
        {
            "model_type": "glm4",
            "num_hidden_layers": 40,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "intermediate_size": 13696,
            "vocab_size": 151552,
        },
        9.40,
    ),
    "chatglm3-6b": (
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "multi_query_group_num": 2,
            "kv_channels": 128,
            "ffn_hidden_size": 13696,
            "padded_vocab_size": 65024,
            "seq_length": 8192,
        },
        6.24,
    ),
    "dbrx": (
        {
            "model_type": "dbrx",
            "n_layers": 40,
            "d_model": 6144,
            "n_heads": 48,
            "max_seq_len": 32768,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        131.6,
    ),
    "deepseek-moe-16b": (
        {
            "model_type": "deepseek",
            "num_hidden_layers": 28,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
        16.4,
    ),
    "mpt-7b": (
        {
            "model_type": "mpt",
            "n_layers": 32,
            "d_model": 4096,
            "n_heads": 32,
            "expansion_ratio": 4,
            "vocab_size": 50432,
            "max_seq_len": 2048,
        },
        6.65,
    ),
    "nemotron-4-15b": (
        {
            "model_type": "nemotron",
            "num_hidden_layers": 32,
            "hidden_size": 6144,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "intermediate_size": 24576,
            "vocab_size": 256000,
        },
        15.6,
    ),
}


def parameters(shape: ModelShape) -> float:
    tables = 1 if shape.tied_embeddings else 2
    layer = weights.layer_weights(shape).parameters(shape)
    return (shape.layers * layer + tables * shape.vocab * shape.hidden) / 1e9


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_family_has_the_parameters_that_are_published(name: str) -> None:
    """Within 3 %; DeepSeek-MoE's one dense layer is counted as one with experts, which is larger."""
    config, published = CONFIGS[name]
    assert parameters(shape_of(config)) == pytest.approx(
        published, rel=0.04 if name.startswith("deep") else 0.03
    )


@pytest.mark.parametrize(
    ("name", "kv_heads", "full", "window"),
    [
        ("Llama-3.1-8B", 8, 32, 0),
        ("Qwen2.5-7B", 4, 28, 0),
        ("falcon-7b", 1, 32, 0),
        ("falcon-40b", 8, 60, 0),
        ("starcoder2-7b", 4, 0, 4096),
        ("phi-3-mini", 32, 0, 2047),
        ("gemma-2-9b", 8, 21, 4096),
        ("gemma-3-27b", 16, 10, 1024),
        ("c4ai-command-r7b", 8, 8, 4096),
        ("chatglm3-6b", 2, 28, 0),
        ("dbrx", 8, 40, 0),
    ],
)
def test_what_a_family_keeps_in_kv(name: str, kv_heads: int, full: int, window: int) -> None:
    shape = shape_of(CONFIGS[name][0])
    assert shape.kv_heads == kv_heads
    assert sum(shape.window(layer) == 0 for layer in range(shape.layers)) == full
    assert max(shape.windows, default=0) == window


def test_layers_that_alternate() -> None:
    gemma = shape_of(CONFIGS["gemma-3-27b"][0])
    assert gemma.architecture == "Gemma3ForConditionalGeneration"
    assert gemma.windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)
    config = CONFIGS["Llama-3.1-8B"][0] | {"sliding_window": 128}
    assert shape_of(config | {"sliding_window_pattern": "LLLG"}).windows[:5] == (128, 128, 128, 0, 128)
    assert shape_of(config | {"use_sliding_window": True, "max_window_layers": 30}).windows[29:] == (
        0,
        128,
        128,
    )
    kinds = ["chunked_attention", "full_attention"] * 16
    assert shape_of(config | {"layer_types": kinds, "attention_chunk_size": 8192}).windows[:2] == (8192, 0)
    assert shape_of(config | {"layer_types": ["full_attention"] * 32}).windows == ()


BASE = CONFIGS["Llama-3.1-8B"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, r"kv_lora_rank says latent KV \(MLA\)"),
        ({"model_type": "mamba2", "state_size": 128}, "state_size says state-space layers"),
        ({"model_type": "jamba", "attn_layer_period": 8}, "attn_layer_period says state-space layers"),
        (
            {"model_type": "qwen3_next", "linear_key_head_dim": 128},
            "linear_key_head_dim says linear attention",
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern says"),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent"]}, "block_types says recurrent"),
        (
            {"model_type": "gemma3n", "num_kv_shared_layers": 10},
            "num_kv_shared_layers says layers that share KV",
        ),
        (
            {"model_type": "mllama", "cross_attention_layers": [3]},
            "cross_attention_layers says cross-attention",
        ),
        ({"model_type": "minimax", "attn_type_list": [0, 1]}, "attn_type_list says linear attention"),
        ({"layer_types": ["mamba"] * 32}, "layer_types names 'mamba'"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "only decoders are served"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
            "decoder_sparse_step says experts in every so many layers",
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1, 2, 3]},
            "mlp_only_layers: 4 of 32 layers have no experts",
        ),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq' is not known"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "gptq with 3 bits is not known"),
        ({"model_type": None}, "model_type must name the architecture"),
    ],
)
def test_what_a_shape_cannot_say_is_refused_by_the_name_of_the_field(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        shape_of({**BASE, **changes})


@pytest.mark.parametrize(
    ("section", "dtype"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "float8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "float8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "float8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_quantised_checkpoints(section: dict[str, Any], dtype: str) -> None:
    shape = shape_of({**BASE, "torch_dtype": "bfloat16", "quantization_config": section})
    assert (shape.weight_dtype, shape.kv_dtype, shape.activation_dtype) == (dtype, "bfloat16", "bfloat16")


def test_experts_of_many_names() -> None:
    assert shape_of(CONFIGS["Mixtral-8x7B"][0]).moe == MoeShape(
        experts=8, experts_per_token=2, intermediate=14336
    )
    assert shape_of(CONFIGS["dbrx"][0]).moe == MoeShape(experts=16, experts_per_token=4, intermediate=10752)
    assert shape_of(CONFIGS["deepseek-moe-16b"][0]).moe == MoeShape(
        experts=64, experts_per_token=6, intermediate=1408, shared_intermediate=2816
    )
    assert shape_of({**BASE, "num_local_experts": 1}).moe is None
