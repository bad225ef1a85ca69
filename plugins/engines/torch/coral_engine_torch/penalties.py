"""Changes to one row of logits before the draw: bias, minimum length, penalties."""

from __future__ import annotations

import torch
from torch import Tensor

from coral.types.request import Sampling
from coral_engine_torch.sequence import Sequence


def changes(sampling: Sampling, position: int) -> bool:
    """Whether `adjust` would change anything for the generated token at `position`."""
    return bool(
        sampling.logit_bias
        or position < sampling.min_tokens
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def adjust(row: Tensor, sequence: Sequence) -> None:
    """In place on logits `[vocab]`, in OpenAI's and vLLM's meaning; unknown token ids are ignored.

    Repetition counts prompt and generated tokens and divides positive logits (multiplies negative ones);
    frequency and presence count generated tokens only. Stop ids are barred below `min_tokens`.
    """
    sampling, vocab = sequence.request.sampling, len(row)
    if sampling.logit_bias:
        bias = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < vocab}
        row[_ids(list(bias), row)] += torch.tensor(list(bias.values()), dtype=row.dtype, device=row.device)
    if len(sequence.generated) < sampling.min_tokens:
        row[_ids([token for token in sampling.stop_ids if 0 <= token < vocab], row)] = float("-inf")
    if sampling.repetition_penalty != 1.0:
        seen = _ids(sorted({*sequence.request.prompt_ids, *sequence.generated}), row)
        logits = row[seen]
        penalty = sampling.repetition_penalty
        row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)
    if (sampling.presence_penalty or sampling.frequency_penalty) and sequence.generated:
        ids, counts = torch.unique(_ids(sequence.generated, row), return_counts=True)
        row[ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def _ids(tokens: list[int], like: Tensor) -> Tensor:
    return torch.tensor(tokens, dtype=torch.long, device=like.device)
