"""What each token adds to the text, as bytes: exact and cheap where a decoder joins tokens byte by byte.

That is so for byte-level BPE (GPT-2's alphabet) and for SentencePiece's pieces with byte fallback, which
between them are nearly every model. Other decoders (WordPiece, CTC) look at neighbours: see `detokenize`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(printable))
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_ALPHABET = byte_alphabet()


class Pieces(dict[int, "str | bytes"]):
    """Token id to what it adds to the text, found on first use.

    A `str` where the token is whole characters, `bytes` where it is part of one. Special tokens add nothing
    unless `special`. Ids that the vocabulary lacks add nothing, as in the tokenizer's own decode.
    """

    def __init__(self, tokenizer: Tokenizer, spelling: Spelling, *, special: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._skipped = frozenset[int]() if special else special_ids(tokenizer)

    def __missing__(self, token: int) -> str | bytes:
        written = None if token in self._skipped else self._tokenizer.id_to_token(token)
        raw = b"" if written is None else self._spelling.spell(written)
        piece: str | bytes
        try:
            piece = raw.decode("utf-8")
        except UnicodeDecodeError:
            piece = raw
        self[token] = piece
        return piece


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(i for i, added in tokenizer.get_added_tokens_decoder().items() if added.special)


class Spelling:
    """How a vocabulary writes bytes: read from the `decoder` of a tokenizer.json."""

    def __init__(self, *, byte_level: bool, byte_fallback: bool, replace: list[tuple[str, str]]) -> None:
        self._byte_level = byte_level
        self._byte_fallback = byte_fallback
        self._replace = replace

    def spell(self, written: str) -> bytes:
        """The bytes of one token of the vocabulary."""
        for old, new in self._replace:
            written = written.replace(old, new)
        if self._byte_level:
            try:
                return bytes([_ALPHABET[character] for character in written])
            except KeyError:  # an added token that is written as itself
                return written.encode()
        if self._byte_fallback and (found := _BYTE_TOKEN.fullmatch(written)):
            return bytes([int(found[1], 16)])
        return written.encode()


def read_spelling(decoder: dict[str, Any] | None) -> Spelling | None:
    """The spelling of a decoder whose tokens join byte by byte; None for every other decoder.

    A `Strip` of leading spaces is left out on purpose: it would strip the first *generated* token, whose
    space belongs to the text that goes on from the prompt.
    """
    byte_level = byte_fallback = False
    replace: list[tuple[str, str]] = []
    for part in _flat(decoder):
        match part:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replace.append((old, new))
            case {"type": "Metaspace", "replacement": str(mark)}:
                replace.append((mark, " "))
            case {"type": "Fuse"} | {"type": "Strip", "content": " ", "stop": 0}:
                pass
            case _:
                return None
    if byte_level and (byte_fallback or replace):
        return None
    if not (byte_level or byte_fallback or replace):
        return None
    return Spelling(byte_level=byte_level, byte_fallback=byte_fallback, replace=replace)


def _flat(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for part in decoder["decoders"]:
            yield from _flat(part)
    else:
        yield decoder
