"""Model folders with a tokenizer and no weights: enough for everything that happens to text."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    "The quick brown fox jumps over the lazy dog. Paris is the capital of France; 東京 is that of Japan. "
    "naïve café, Grüße, 👩‍🚀 🎉 один два три",
    "def main() -> None:\n    print('hello, world')\n\n\n",
)


def byte_level_tokenizer(vocab: int = 400) -> Tokenizer:
    """As GPT-2's, Llama 3's, Qwen's: pieces of UTF-8, so that a character may span tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """As Llama 2's, Mistral's, Phi-3's: pieces of text, and a token for each byte of all other characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += [chr(c) for c in range(0x21, 0x7F)] + ["▁t", "he", "▁the", "é", "▁a", "東"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    return tokenizer


def word_piece_tokenizer() -> Tokenizer:
    """As BERT's: a token's text depends on its neighbours."""
    words = ["[UNK]", "the", "quick", "fox", "jump", "##s", "##ing", "dog", ".", ",", "é"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def write_text_folder(
    folder: Path, tokenizer: Tokenizer | None = None, *, template: str | None = CHATML
) -> Path:
    """tokenizer.json, tokenizer_config.json, generation_config.json and config.json in `folder`."""
    tokenizer = tokenizer or byte_level_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    described: dict[str, object] = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    if template is not None:
        described["chat_template"] = template
    ends = [i for name in ("<|im_end|>", "<|endoftext|>") if (i := tokenizer.token_to_id(name)) is not None]
    _write(folder / "tokenizer_config.json", described)
    _write(folder / "generation_config.json", {"eos_token_id": ends})
    _write(folder / "config.json", {"vocab_size": tokenizer.get_vocab_size()})
    return folder


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content), "utf-8")
