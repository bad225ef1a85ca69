"""Tiny random models of each family, with tokenizer and chat template, so that a whole server runs on them.

Needs torch, transformers and tokenizers, imported only where a model is made.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "phi3", "mistral", "gpt_oss", "phi4_mini")
"""Short names of the families that `make_tiny` knows."""

LAYERS = 4
SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIALS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny(family: str, folder: Path, *, layers: int = LAYERS, seed: int = 0) -> Path:
    """`folder`, holding a random model of `family` with `layers` layers in fp32 and its tokenizer.

    The same arguments give the same weights. A folder that is there already is left as it is; a new one
    appears whole, so that several processes may ask for it at once. ValueError for an unknown family.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; known are {', '.join(FAMILIES)}")
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        made = Path(scratch) / "model"
        _save_model(family, made, layers, seed)
        _save_tokenizer(made)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # otherwise another process was faster
                raise
    return folder


def _save_model(family: str, folder: Path, layers: int, seed: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    config = _config(family, layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.15)
            else:  # norms, biases, sinks: a test that forgets one must fail
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.eval()
    model.save_pretrained(folder)


def _config(family: str, layers: int) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    match family:
        case "llama":
            rope = {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
            return transformers.LlamaConfig(**common, tie_word_embeddings=False, rope_parameters=rope)
        case "qwen2":
            return transformers.Qwen2Config(**common, tie_word_embeddings=True)
        case "qwen3":
            return transformers.Qwen3Config(**common, head_dim=48, tie_word_embeddings=True)
        case "qwen3_moe":
            experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
            return transformers.Qwen3MoeConfig(
                **common, **experts, head_dim=32, norm_topk_prob=True, tie_word_embeddings=False
            )
        case "phi3":
            return transformers.Phi3Config(**common, tie_word_embeddings=False)
        case "phi4_mini":
            rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
            return transformers.Phi3Config(**common, tie_word_embeddings=True, rope_parameters=rope)
        case "mistral":
            return transformers.MistralConfig(**common, sliding_window=24, tie_word_embeddings=False)
        case "gpt_oss":
            rope = {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 128,
                "truncate": False,
            }
            experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
            return transformers.GptOssConfig(
                **common, **experts, head_dim=32, sliding_window=24, rope_parameters=rope
            )
        case _:
            raise ValueError(family)


def _save_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: every text has ids, every sequence of ids a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate((*SPECIALS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIALS[1], eos_token=SPECIALS[2], pad_token=SPECIALS[0]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
