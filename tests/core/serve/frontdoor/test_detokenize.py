"""Incremental detokenizing adds up to what the tokenizer decodes at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coral.core.serve.frontdoor.text.detokenize import PieceDetokenizer
from coral.core.serve.frontdoor.text.vocabulary import Vocabulary
from coral.testing.text_folder import byte_fallback_tokenizer, byte_level_tokenizer, word_piece_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()
WORD_PIECE = word_piece_tokenizer()
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("👩‍🚀🎉東京é ", max_size=20)


def pieces(
    vocabulary: Vocabulary, ids: list[int], *, prompt: list[int] | None = None, special: bool = False
) -> list[str]:
    detokenizer = vocabulary.detokenizer(prompt or [], special=special)
    return [*(detokenizer.add(token) for token in ids), detokenizer.end()]


@pytest.mark.parametrize("special", [False, True])
@given(ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 5), max_size=60))
@settings(max_examples=300, deadline=None)
def test_byte_level_deltas_are_the_whole_text(ids: list[int], special: bool) -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    assert isinstance(vocabulary.detokenizer([], special=special), PieceDetokenizer)
    known = [i for i in ids if i < BYTE_LEVEL.get_vocab_size()]
    whole = BYTE_LEVEL.decode(known, skip_special_tokens=not special)
    assert "".join(pieces(vocabulary, ids, special=special)) == whole


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_byte_level_text_comes_back_without_half_characters(text: str) -> None:
    ids = BYTE_LEVEL.encode(text).ids
    deltas = pieces(Vocabulary(BYTE_LEVEL), ids)
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_byte_fallback_goes_on_from_the_prompt(text: str) -> None:
    """The first generated token keeps its space, which decoding it alone would strip."""
    prompt = BYTE_FALLBACK.encode("the dog", add_special_tokens=False).ids
    ids = BYTE_FALLBACK.encode(text, add_special_tokens=False).ids
    whole = BYTE_FALLBACK.decode(prompt + ids)
    deltas = pieces(Vocabulary(BYTE_FALLBACK), ids, prompt=prompt)
    assert "the dog" + "".join(deltas) == whole


def test_byte_fallback_keeps_what_is_valid_beside_what_is_not() -> None:
    """The library makes a whole run of bytes U+FFFD where one is wrong; here what is valid stays."""

    def token(written: str) -> int:
        return BYTE_FALLBACK.get_vocab()[written]

    emoji = [token(f"<0x{byte:02X}>") for byte in "🎉".encode()]
    deltas = pieces(Vocabulary(BYTE_FALLBACK), [*emoji, token("<0xFF>"), token("a")])
    assert deltas == ["", "", "", "🎉", "\ufffd", "a", ""]


@given(ids=st.lists(st.integers(0, WORD_PIECE.get_vocab_size() - 1), max_size=30))
@settings(max_examples=200, deadline=None)
def test_other_decoders_are_decoded_in_context(ids: list[int]) -> None:
    assert "".join(pieces(Vocabulary(WORD_PIECE), ids)) == WORD_PIECE.decode(ids)


def test_every_split_of_a_character_is_held_back() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    single = [vocabulary.id_of(c) for c in "ðŁĳ©"]  # the four bytes of 👩 in GPT-2's alphabet
    assert None not in single
    deltas = pieces(vocabulary, [i for i in single if i is not None])
    assert deltas == ["", "", "", "👩", ""]
    cut = pieces(vocabulary, [i for i in itertools.islice(single, 3) if i is not None])
    assert cut == ["", "", "", "\ufffd"]
