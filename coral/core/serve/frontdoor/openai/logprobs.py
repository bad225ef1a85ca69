"""Log probabilities in the shapes of both APIs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

LEAST = -9999.0
"""Stands for minus infinity, which JSON lacks (as in OpenAI's and vLLM's answers)."""


class LoggedToken(Struct, frozen=True, kw_only=True):
    """`raw`: the token's bytes, maybe part of a character. `offset`: characters of the text before it.

    `top` are the most likely tokens and their log probabilities, best first.
    """

    raw: bytes
    logprob: float
    offset: int
    top: tuple[tuple[bytes, float], ...]


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


def chat_logprobs(logged: Sequence[LoggedToken]) -> ChatLogprobs:
    """A token that is part of a character reads as U+FFFD; its `bytes` are exact."""
    return ChatLogprobs(
        [
            ChatLogprob(
                token.raw.decode("utf-8", "replace"),
                _finite(token.logprob),
                list(token.raw),
                [TopLogprob(raw.decode("utf-8", "replace"), _finite(p), list(raw)) for raw, p in token.top],
            )
            for token in logged
        ]
    )


def completion_logprobs(logged: Sequence[LoggedToken]) -> CompletionLogprobs:
    """`top_logprobs` hold the sampled token too, as OpenAI's do; null where none were asked for."""
    tops = [{_name(raw): _finite(p) for raw, p in token.top} for token in logged]
    for token, top in zip(logged, tops, strict=True):
        if top:
            top.setdefault(_name(token.raw), _finite(token.logprob))
    return CompletionLogprobs(
        [_name(token.raw) for token in logged],
        [_finite(token.logprob) for token in logged],
        tops if any(tops) else None,
        [token.offset for token in logged],
    )


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST else LEAST


def _name(raw: bytes) -> str:
    """A token by its text, or `bytes:\\xe2\\x82` where it is part of a character (OpenAI's notation)."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
