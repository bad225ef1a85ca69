"""Incremental detokenizing: what each token adds to the text, never half a character.

The pieces of all `add` calls and of `end`, joined, are the text of all tokens as one would decode them
after the prompt. Bytes that are no UTF-8 become U+FFFD, one for each maximal part, as Python and Rust do.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from coral.core.serve.frontdoor.text.pieces import Pieces

CONTEXT = 8
"""Tokens of the prompt that a decoder with context sees."""


class Detokenizer(Protocol):
    def add(self, token: int) -> str:
        """The characters that are complete with this token."""
        ...

    def end(self) -> str:
        """What was held back: an unfinished character becomes U+FFFD."""
        ...


class PieceDetokenizer:
    """For decoders that join tokens byte by byte: one table look-up a token."""

    __slots__ = ("_pieces", "_tail")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._tail = b""

    def add(self, token: int) -> str:
        piece = self._pieces[token]
        if isinstance(piece, str):
            if not self._tail or not piece:
                return piece
            piece = piece.encode()
        joined = self._tail + piece
        text, used = codecs.utf_8_decode(joined, "replace", False)
        self._tail = joined[used:]
        return text

    def end(self) -> str:
        text = self._tail.decode("utf-8", "replace")
        self._tail = b""
        return text


class ContextDetokenizer:
    """For any other decoder: decodes a short window twice and hands on the difference."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], *, special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = not special
        self._window = list(prompt[-CONTEXT:])
        self._known = len(self._window)
        """Tokens of the window whose text has been handed on."""

    def add(self, token: int) -> str:
        self._window.append(token)
        before, after = self._decode(self._window[: self._known]), self._decode(self._window)
        if after.endswith("\ufffd") or not after.startswith(before):
            return ""
        self._window = self._window[max(0, self._known - CONTEXT) :]
        self._known = len(self._window)
        return after[len(before) :]

    def end(self) -> str:
        before, after = self._decode(self._window[: self._known]), self._decode(self._window)
        self._known = len(self._window)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)
