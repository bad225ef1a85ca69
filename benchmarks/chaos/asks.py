"""Requests, and what must come of each: the mock engine's tokens are a function of the request."""

from __future__ import annotations

import random
from typing import Any

from coral_engine_mock.tokens import fold, start, token_of
from msgspec import Struct

from benchmarks.chaos.world import MOCK_VOCAB, MODEL
from coral.types.request import Sampling

SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
FIRST_LETTER = 3
END = 2


class Ask(Struct, frozen=True, kw_only=True):
    """Greedy where `temperature` is 0, else sampled with `seed`. `ends`: an end-of-sequence token ends it."""

    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool = True
    temperature: float = 0.0
    seed: int = 0
    ends: bool = False
    model: str = MODEL

    def body(self, deadline_s: float) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "stream": self.stream,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": not self.ends,
            "skip_special_tokens": False,
            "timeout": deadline_s,
        }


class Answer(Struct, frozen=True, kw_only=True):
    text: str
    finish: str


def asks(
    count: int,
    seed: int,
    *,
    prompt: tuple[int, int] = (1, 200),
    output: tuple[int, int] = (8, 160),
    vocabulary: int = MOCK_VOCAB,
) -> list[Ask]:
    """Lengths from the ranges given, skewed to the short; a fifth is not streamed, a third is sampled."""
    draw = random.Random(seed)

    def length(least: int, most: int) -> int:
        return least + int((most - least) * draw.random() ** 2)

    return [
        Ask(
            prompt=tuple(draw.randrange(FIRST_LETTER, vocabulary) for _ in range(length(*prompt))),
            max_tokens=length(*output),
            stream=draw.random() < 0.8,
            temperature=1.0 if draw.random() < 1 / 3 else 0.0,
            seed=draw.randrange(1 << 30),
            ends=draw.random() < 0.1,
        )
        for _ in range(count)
    ]


def mock_answer(ask: Ask) -> Answer:
    """What the mock engine says to it, computed apart from any engine."""
    sampling = Sampling(max_tokens=ask.max_tokens, temperature=ask.temperature, seed=ask.seed)
    state = fold(start(sampling), ask.prompt)
    text = ""
    for position in range(ask.max_tokens):
        token = token_of(state, position, MOCK_VOCAB, ())
        if token == END and ask.ends:
            return Answer(text=text, finish="stop")
        state = fold(state, (token,))
        text += SPECIALS[token] if token < FIRST_LETTER else chr(ord("!") + token - FIRST_LETTER)
    return Answer(text=text, finish="length")
