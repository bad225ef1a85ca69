"""A GGUF file's byte-level BPE tokenizer and chat template as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from coral.core.profile.gguf.fields import Fields
from coral.errors import SourceError

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED = 3, 4  # token types of GGUF


def write_tokenizer(fields: Fields, folder: Path) -> None:
    """Raises SourceError for a vocabulary of another kind."""
    if fields.text("tokenizer.ggml.model") != "gpt2":
        raise SourceError(
            f"{fields.path}: a vocabulary of kind {fields.text('tokenizer.ggml.model')!r} is not converted",
            mend="take a checkpoint with tokenizer.json",
        )
    tokens = fields.texts("tokenizer.ggml.tokens")
    merges = [(a, b) for a, _, b in (merge.partition(" ") for merge in fields.texts("tokenizer.ggml.merges"))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _words(fields)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields.integers("tokenizer.ggml.token_type")
    added = [
        (token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, kind in added if kind == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in added if kind == _USER_DEFINED])
    special = _special(fields, tokens)
    bos = special.get("bos_token")
    if bos and "tokenizer.ggml.add_bos_token" in fields and _flag(fields, "tokenizer.ggml.add_bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocabulary[bos])]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields.text("tokenizer.chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _words(fields: Fields) -> Any:
    """How text is cut into words before the merges, by the name GGUF has for it."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    kind = fields.text("tokenizer.ggml.pre", "default")
    match kind:
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        case "gpt-2" | "default":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "llama-bpe" | "llama3":
            words = _WORDS.replace("DIGITS", r"\p{N}{1,3}")
        case "qwen2":
            words = _WORDS.replace("DIGITS", r"\p{N}")
        case _:
            raise SourceError(
                f"{fields.path}: words are cut by {kind!r}, which is not known here",
                mend="take a checkpoint with tokenizer.json",
            )
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), bytes_only])


def _special(fields: Fields, tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: f"tokenizer.ggml.{key}_token_id" for name, key in keys.items()}
    return {name: tokens[fields.integer(key)] for name, key in ids.items() if key in fields}


def _flag(fields: Fields, key: str) -> bool:
    return bool(fields.integer(key))  # a bool is an int
