"""The rules of `throughput` for one device slice, one per phase: `[number of S given, L]` rates.

`slos[i]` is what a pipeline aims at whose stages are `stages[i]`; the model's SLO where none are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coral.core.profile.device import Device
from coral.core.profile.grid import WorkGrid
from coral.types.model import Phase, Role, Slo
from coral.types.program import Floats

GROUPS = 9
"""Groups of a prompt's chunks whose steps are timed apart (mixed)."""


def prefill(
    device: Device, role: Role, tp: int, stages: Sequence[float], slos: Sequence[Slo] | None = None
) -> Floats:
    """Prompt tokens/s."""
    work, most = device.work, device.able.max_step_tokens
    prompts = batches(min(device.able.max_step_requests, max(16, int(most / work.in_))))
    tokens = prompts * work.in_
    worst = work.prompt + (prompts - 1) * work.in_
    attended = work.prompt**2 / 2 + (prompts - 1) * work.in_ * work.prompt_attended
    mean_s = _prompts_s(device, role, tp, tokens, tokens * work.prompt_attended, prompts, most)
    worst_s = _prompts_s(device, role, tp, worst, attended, prompts, most)
    rates = tokens[:, None] / mean_s
    aims = _aims(device, stages, slos)
    best = _best_within(device, rates, worst_s, worst, stages, [slo.prefill_s / S for S, slo in aims])
    return np.minimum(best, [device.memory_rate("prefill", role, tp, slo) for _, slo in aims])


def decode(
    device: Device, role: Role, tp: int, stages: Sequence[float], slos: Sequence[Slo] | None = None
) -> Floats:
    """Output tokens/s."""
    rows = batches(device.able.max_step_requests, apart=0.02)
    zero = np.zeros_like(rows)
    works = WorkGrid(
        prefill_tokens=zero,
        prefill_context=zero,
        decode_rows=rows,
        decode_context=rows * device.work.decode_attended,
        logit_rows=rows,
    )
    seconds = device.seconds(works, role, tp)
    rates = rows[:, None] / seconds
    aims = _aims(device, stages, slos)
    best = _best_within(device, rates, seconds, rows, stages, [slo.decode_s / S for S, slo in aims])
    return np.minimum(best, [device.memory_rate("decode", role, tp, slo) for _, slo in aims])


def mixed(
    device: Device, role: Role, tp: int, stages: Sequence[float], slos: Sequence[Slo] | None = None
) -> Floats:
    """Requests/s."""
    work, able, aims = device.work, device.able, _aims(device, stages, slos)
    rows = batches(able.max_step_requests)
    while rows[0] * work.in_ / work.out > able.max_step_tokens / 2:  # not a row in every step
        rows = np.append(rows[0] / 2, rows)
    prompt = rows * work.in_ / work.out
    steady = _mixed_s(device, role, tp, prompt, work.prompt_attended, rows)
    rates = rows[:, None] / work.out / steady
    sizes = chunk_sizes(work.prompt, able.max_step_tokens)
    q, b = (a.ravel() for a in np.meshgrid(sizes, np.maximum(rows, 1), indexing="ij"))
    tried = np.flatnonzero((q >= np.tile(prompt, len(sizes))) & (q + b <= able.max_step_tokens))
    groups = [(count[tried], attended[tried]) for count, attended in chunk_groups(work.prompt, q)]
    q, b = q[tried], b[tried]
    last = _mixed_s(device, role, tp, q, groups[-1][1], b)
    light = np.logical_or.reduce([last[:, 0] <= slo.decode_s / S - device.hop_s(q + b, S) for S, slo in aims])
    tried, q, b, last = tried[light], q[light], b[light], last[light]
    counts = np.array([count[light] for count, _ in groups])
    loaded = np.zeros((len(groups), *last.shape))
    loaded[-1] = last
    for g, (_, attended) in enumerate(groups[:-1]):
        some = counts[g] > 0
        if some.any():
            loaded[g, some] = _mixed_s(device, role, tp, q[some], attended[light][some], b[some])
    worst, spent = loaded.max(axis=0), np.einsum("gi,gij->ij", counts, loaded)
    steps = counts.sum(axis=0)
    found = []
    for S, slo in aims:
        hop = device.hop_s(q + b, S)
        within = worst <= (slo.decode_s / S - hop)[:, None]
        within &= spent <= (slo.prefill_s / S - steps * hop)[:, None]
        every = np.zeros((len(sizes) * len(rows), device.layers), bool)
        every[tried] = within
        bearable = np.logical_or.reduce(every.reshape(len(sizes), len(rows), -1), axis=0)
        found.append(_best(rates, bearable, device.memory_rate("mixed", role, tp, slo)))
    return np.array(found)


class Rule(Protocol):
    def __call__(
        self, device: Device, role: Role, tp: int, stages: Sequence[float], slos: Sequence[Slo] | None = None
    ) -> Floats: ...


RULES: dict[Phase, Rule] = {"prefill": prefill, "decode": decode, "mixed": mixed}


def batches(most: int, apart: float = 0.06) -> Floats:
    """Batch sizes that are tried: all up to 32, then `apart` from each other, up to `most`."""
    sizes = {*range(1, min(most, 32) + 1), most}
    size = 32.0
    while size < most:
        sizes.add(int(size))
        size *= 1 + apart
    return np.array(sorted(sizes), float)


def chunk_sizes(prompt: int, most: int) -> Floats:
    """Prompt tokens per step that are tried: the prompt in 1..16 equal parts, and powers of two."""
    parts = {-(-prompt // n) for n in range(1, 17)}
    powers = {1 << e for e in range(3, most.bit_length())}
    return np.array(sorted(size for size in parts | powers | {most} if size <= most), float)


def chunk_groups(prompt: int, size: Floats) -> Iterator[tuple[Floats, Floats]]:
    """The steps of a prompt taken `size` tokens at a time, in up to `GROUPS` groups of like ones.

    Yields (steps in the group, mean tokens that a token of such a step attends to), arrays like `size`; a
    group may have no step. A group's steps are taken to attend as much as its last one does, so that sums
    over groups are exact up to `GROUPS` steps and never too small beyond. The last chunk attends to nearly
    all of the prompt and is a group of its own; what it leaves of its step, following prompts fill.
    """
    whole = np.ceil(prompt / size) - 1
    done = np.zeros_like(size)
    for group in range(1, GROUPS):
        upto = np.ceil(whole * group / (GROUPS - 1))
        yield upto - done, np.maximum(upto - 0.5, 0.5) * size
        done = upto
    left = prompt - whole * size
    rest = size - left
    attended = left * (whole * size + left / 2) + rest * np.minimum(rest, prompt) / 2
    yield np.ones_like(size), attended / size


def _prompts_s(
    device: Device, role: Role, tp: int, tokens: Floats, attended: Floats, prompts: Floats, most: int
) -> Floats:
    """Seconds of the steps that `tokens` prompt tokens take, `most` at a time."""
    steps = np.ceil(tokens / most)
    zero = np.zeros_like(tokens)
    works = WorkGrid(
        prefill_tokens=tokens / steps,
        prefill_context=attended / steps,
        decode_rows=zero,
        decode_context=zero,
        logit_rows=prompts / steps,
    )
    return steps[:, None] * device.seconds(works, role, tp)


def _mixed_s(
    device: Device, role: Role, tp: int, prompt: Floats, prompt_attended: Floats | float, rows: Floats
) -> Floats:
    work = device.work
    works = WorkGrid(
        prefill_tokens=prompt,
        prefill_context=prompt * prompt_attended,
        decode_rows=rows,
        decode_context=rows * work.decode_attended,
        logit_rows=rows + prompt / work.in_,
    )
    return device.seconds(works, role, tp)


def _aims(device: Device, stages: Sequence[float], slos: Sequence[Slo] | None) -> list[tuple[float, Slo]]:
    return list(zip(stages, slos or [device.model.slo] * len(stages), strict=True))


def _best_within(
    device: Device,
    rates: Floats,
    seconds: Floats,
    rows: Floats,
    stages: Sequence[float],
    budgets: Sequence[float],
) -> Floats:
    """`[budget, L]`: the best of the rates of batches of `rows` that take no longer, with their hop.

    Batches in the order of what they take, so that a budget is one look-up, however many there are.
    """
    best = np.zeros((len(budgets), rates.shape[1]))
    given, alone = np.array(budgets), np.array(stages) == 1
    for few in (True, False):
        of = np.flatnonzero(alone == few)
        if not len(of):
            continue
        spent = seconds + device.hop_s(rows, 1 if few else 2)[:, None]
        order = np.argsort(spent, axis=0, kind="stable")
        spent = np.take_along_axis(spent, order, axis=0)
        most = np.maximum.accumulate(np.take_along_axis(rates, order, axis=0), axis=0)
        most = np.vstack([np.zeros_like(most[:1]), most])
        for j in range(rates.shape[1]):
            best[of, j] = most[np.searchsorted(spent[:, j], given[of], side="right"), j]
    return best


def _best(rates: Floats, within: NDArray[np.bool_], limit: Floats) -> Floats:
    """`[L]`: the best rate among batches within their budget, capped by memory."""
    best: Floats = np.where(within, rates, 0.0).max(axis=0)
    return np.minimum(best, np.maximum(limit, 0.0))
