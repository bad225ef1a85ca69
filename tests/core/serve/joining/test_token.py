from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coral.core.serve.joining.token import MARK, Token
from coral.core.serve.net.keys import KeyPair
from coral.errors import UsageError


def made(**changes: object) -> Token:
    given = {
        "address": "10.0.0.1:7000",
        "server": KeyPair.new().public,
        "secret": KeyPair.new().secret,
        "machine": "gpu-1",
        "expires_s": time.time() + 60,
    }
    return Token(**{**given, **changes})  # type: ignore[arg-type]


def test_a_token_is_one_word_that_says_all() -> None:
    token = made(machine="a machine\n$(x)")
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token.text())
    assert Token.parse(f"  {token.text()}\n") == token
    assert token.secret not in repr(token)


def test_an_expired_token_is_told_apart() -> None:
    with pytest.raises(UsageError, match="expired"):
        Token.parse(made(expires_s=time.time() - 1).text())


@given(st.text() | st.text().map(lambda text: MARK + text))
def test_anything_else_is_no_token(text: str) -> None:
    with pytest.raises(UsageError, match="token"):
        Token.parse(text)


@given(st.data())
def test_a_token_that_was_not_copied_whole_is_damaged(data: st.DataObject) -> None:
    text = made().text()
    cut = data.draw(st.integers(len(MARK), len(text) - 2))
    with pytest.raises(UsageError, match="damaged"):
        Token.parse(text[:cut])
