"""A model's tokenizer: text to ids, ids to text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from coral.core.serve.frontdoor.text.detokenize import ContextDetokenizer, Detokenizer, PieceDetokenizer
from coral.core.serve.frontdoor.text.pieces import Pieces, Spelling, read_spelling, special_ids
from coral.errors import SourceError


class Vocabulary:
    """`size`: ids are below it. Safe to use from several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()  # a prompt is refused where it is too long, never cut
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        description: dict[str, Any] = msgspec.json.decode(tokenizer.to_str())
        self._spelling: Spelling | None = read_spelling(description["decoder"])
        if self._spelling is not None:
            self._shown = Pieces(tokenizer, self._spelling, special=False)
            self._all = Pieces(tokenizer, self._spelling, special=True)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Raises SourceError where the file is missing or damaged."""
        if not path.is_file():
            raise SourceError(
                f"{path} is missing: the front door reads tokenizers in this form only",
                mend="make it with transformers: AutoTokenizer.from_pretrained(F).save_pretrained(F)",
            )
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise SourceError(
                f"{path} cannot be read: {error}", mend="take the model's files anew"
            ) from error

    def encode(self, text: str, *, specials: bool) -> tuple[int, ...]:
        """`specials`: with what the tokenizer puts round a text (BOS; chat templates write their own).

        Other threads run meanwhile: the batched call gives up the interpreter's lock, `encode` does not.
        """
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=specials)[0].ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def detokenizer(self, prompt: Sequence[int], *, special: bool) -> Detokenizer:
        """For tokens that follow `prompt`. `special`: special tokens are part of the text."""
        if self._spelling is None:
            return ContextDetokenizer(self._tokenizer, prompt, special=special)
        return PieceDetokenizer(self._all if special else self._shown)

    def token_bytes(self, token: int) -> bytes:
        """One token alone, special or not, as `logprobs` shows it."""
        if self._spelling is None:
            return self.decode([token], special=True).encode()
        piece = self._all[token]
        return piece.encode() if isinstance(piece, str) else piece

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    @property
    def special(self) -> frozenset[int]:
        return self._special
