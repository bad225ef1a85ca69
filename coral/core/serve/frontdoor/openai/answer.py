"""Whole answers, not streamed: what both APIs send as one JSON object."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from coral.core.serve.frontdoor.openai.logprobs import LoggedToken, chat_logprobs, completion_logprobs

Api = Literal["chat", "completion"]
_PREFIX: dict[Api, str] = {"chat": "chatcmpl-", "completion": "cmpl-"}


class Heading(Struct, frozen=True, kw_only=True):
    """What every answer and chunk of one request says. `created`: seconds since the epoch."""

    api: Api
    id: str
    created: int
    model: str


class Usage(Struct, frozen=True, kw_only=True):
    """A prompt counts once, whatever `n`; generated tokens count with the one that stopped."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(Struct, frozen=True, kw_only=True):
    """`logged` is None where log probabilities were not asked for."""

    index: int
    text: str
    finish: str
    logged: Sequence[LoggedToken] | None


def new_id(api: Api) -> str:
    return _PREFIX[api] + secrets.token_hex(12)


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )


def whole_answer(heading: Heading, choices: Sequence[Choice], counts: Usage) -> bytes:
    """JSON of a `chat.completion` or a `text_completion`."""
    chat = heading.api == "chat"
    return msgspec.json.encode(
        {
            "id": heading.id,
            "object": "chat.completion" if chat else "text_completion",
            "created": heading.created,
            "model": heading.model,
            "choices": [_chat_choice(c) if chat else _completion_choice(c) for c in choices],
            "usage": counts,
        }
    )


def _chat_choice(choice: Choice) -> dict[str, object]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if choice.logged is None else chat_logprobs(choice.logged),
        "finish_reason": choice.finish,
    }


def _completion_choice(choice: Choice) -> dict[str, object]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logged is None else completion_logprobs(choice.logged),
        "finish_reason": choice.finish,
    }
