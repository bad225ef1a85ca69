"""Draws the next token of each row.

A draw is a pure function of the row's logits, its sampling parameters, its seed and its position. It is an
exponential race: the token with the largest p / E wins, E drawn from Exp(1) by (seed, position, token), which
picks each token with its probability p. What else is in the batch has no part in it. A replay elsewhere
draws the same, also where rounding has moved the logits: the race's winner changes with a probability of
about the change in p, where inverting a cumulative sum would add up the changes before the token.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from coral.errors import EngineError
from coral.types.request import Sampling, TokenLogprob
from coral.types.stage import Sampled
from coral_engine_torch.noise import exponentials, stream
from coral_engine_torch.penalties import adjust, changes
from coral_engine_torch.sequence import Sequence

DRAW_SCORES = 1 << 19
"""Most scores (rows × vocabulary) that are worked on in double precision at once, unless one row has more."""


@torch.inference_mode()
def sample(logits: Tensor, sequences: Rows[Sequence], max_model_len: int) -> list[Sampled]:
    """One token per row of fp32 logits `[R, vocab]`; raises EngineError where a row is not finite.

    Log-probabilities are those of the model's own distribution, before bias, penalties and temperature.
    A token ends its sequence when it is a stop id, or when `max_tokens` or `max_model_len` is reached.
    """
    settings = [sequence.request.sampling for sequence in sequences]
    positions = [len(sequence.generated) for sequence in sequences]
    top = logits.amax(-1)
    for sequence, finite in zip(sequences, top.isfinite().tolist(), strict=True):
        if not finite:
            raise EngineError(
                f"the model's output for {sequence.request.id} is not finite",
                mend="load it in float32 or bfloat16 if it runs in float16; else the weights are damaged",
            )
    scores = logits
    changed = [i for i, s in enumerate(settings) if changes(s, positions[i])]
    if changed:
        scores = logits.clone()
        for i in changed:
            adjust(scores[i], sequences[i])
    tokens = _draw(scores, settings, positions)
    logprobs = _logprobs(logits, settings, tokens)
    return [
        _finish(sequence, tokens[i], logprobs.get(i), max_model_len) for i, sequence in enumerate(sequences)
    ]


def _draw(scores: Tensor, settings: Rows[Sampling], positions: Rows[int]) -> list[int]:
    tokens: list[int] = scores.argmax(-1).tolist()
    drawn = [i for i, s in enumerate(settings) if s.temperature > 0]
    plain = [i for i in drawn if not _filters(settings[i], scores.shape[-1])]
    step = max(1, DRAW_SCORES // scores.shape[-1])
    for kind, filtered in ((plain, False), ([i for i in drawn if i not in plain], True)):
        for low in range(0, len(kind), step):
            rows = kind[low : low + step]
            chosen = [settings[i] for i in rows]
            streams = [stream(settings[i].seed, positions[i]) for i in rows]
            picked = _pick(scores[rows], chosen, streams, filtered)
            for i, token in zip(rows, picked, strict=True):
                tokens[i] = token
    return tokens


def _filters(sampling: Sampling, vocab: int) -> bool:
    return 0 < sampling.top_k < vocab or sampling.top_p < 1 or sampling.min_p > 0


def _pick(scores: Tensor, settings: Rows[Sampling], streams: Rows[int], filtered: bool) -> list[int]:
    """The winner of each row's race; `[R, vocab]` to R tokens."""
    temperature = _column([s.temperature for s in settings], scores)
    weights = torch.softmax((scores - scores.amax(-1, keepdim=True)).double() / temperature, -1)
    if filtered:
        weights = weights * _kept(weights, settings)
    race = weights / exponentials(streams, scores.shape[-1], scores.device)
    tokens: list[int] = race.argmax(-1).tolist()
    return tokens


def _kept(weights: Tensor, settings: Rows[Sampling]) -> Tensor:
    """Which tokens stay: min_p, then top_k, then the fewest whose share of what is left reaches top_p."""
    vocab = weights.shape[-1]
    ranked, order = weights.sort(dim=-1, descending=True, stable=True)
    ranked = ranked * (ranked >= _column([s.min_p for s in settings], weights) * ranked[:, :1])
    k = torch.tensor([s.top_k if s.top_k > 0 else vocab for s in settings], device=weights.device)
    ranked = ranked * (torch.arange(vocab, device=weights.device) < k[:, None])
    before = ranked.cumsum(-1) - ranked
    share = _column([s.top_p for s in settings], weights) * ranked.sum(-1, keepdim=True)
    keep = (ranked > 0) & (before < share)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order, keep)


def _column(values: Rows[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _logprobs(
    logits: Tensor, settings: Rows[Sampling], tokens: Rows[int]
) -> dict[int, tuple[float, tuple[TokenLogprob, ...]]]:
    """By row: the token's log-probability, and the most likely tokens with theirs."""
    found: dict[int, tuple[float, tuple[TokenLogprob, ...]]] = {}
    for i, sampling in enumerate(settings):
        if sampling.logprobs is not None:
            row = torch.log_softmax(logits[i], -1)
            values, ids = row.topk(min(sampling.logprobs, len(row)))
            pairs = zip(ids.tolist(), values.tolist(), strict=True)
            top = tuple(TokenLogprob(token=token, logprob=value) for token, value in pairs)
            found[i] = (float(row[tokens[i]]), top)
    return found


def _finish(
    sequence: Sequence, token: int, logprob: tuple[float, tuple[TokenLogprob, ...]] | None, max_model_len: int
) -> Sampled:
    sampling, position = sequence.request.sampling, len(sequence.generated)
    value, top = logprob if logprob is not None else (None, ())
    ends = position + 1 >= sampling.max_tokens or sequence.known + 1 >= max_model_len
    return Sampled(
        request=sequence.request.id,
        position=position,
        token=token,
        finish="stop" if token in sampling.stop_ids else "length" if ends else None,
        logprob=value,
        top=top,
    )
