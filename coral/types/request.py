"""Requests, sampling, tokens."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FinishReason = Literal["stop", "length", "abort", "error"]

Leg = Literal["whole", "prefill", "decode"]
"""What an instance does of a request: all of it; all up to one token, whose KV it then hands over; or
what follows, on KV that another instance hands over."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen. Sampling at a position is a function of (seed, position) alone.

    `seed` is always set by whoever admits the request, so that a replay draws the same tokens.
    `logprobs`: None = none; 0 = of the sampled token; k = also of the k most likely tokens.
    `stop_ids` end generation and are not part of the text. `repetition_penalty` counts prompt and
    generated tokens; `presence_penalty` and `frequency_penalty` generated tokens only (as OpenAI's).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    logit_bias: dict[int, float] = {}


class GenerateRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one sequence needs. `generated` is not empty where a request is resumed elsewhere.

    `max_tokens` in `sampling` counts all generated tokens, also those in `generated`.
    `deadline_s` is seconds since the epoch (time.time()), 0 = none. `open_ended`: its client named no
    limit; `max_tokens` is then the most any instance could hold, and is cut to what the one it goes to can.
    """

    id: str
    model: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    generated: tuple[int, ...] = ()
    priority: float = 1.0
    deadline_s: float = 0.0
    open_ended: bool = False

    @property
    def known(self) -> int:
        """Tokens known of the sequence: the prompt's and those generated so far."""
        return len(self.prompt_ids) + len(self.generated)


class TokenLogprob(Struct, frozen=True, kw_only=True, array_like=True):
    token: int
    logprob: float


class Token(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampled token. `position` counts generated tokens from 0, so a duplicate is recognised."""

    request: str
    attempt: int
    position: int
    token: int
    finish: FinishReason | None = None
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
