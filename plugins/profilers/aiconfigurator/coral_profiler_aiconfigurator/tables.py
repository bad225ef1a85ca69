"""The curves and surfaces of one (shape, GPU, tensor parallel degree), sampled from the measured kernels.

Everything that depends on the number of tokens alone is a curve over tokens. Attention is a surface over
(rows, what they attend to together), which is all that a step's work says of it:

* n prompt tokens that attend to C tokens together. Where C is no more than a fresh prompt of n tokens
  attends to, n²/2, they are b = n²/2C equal prompts of s = 2C/n tokens; where it is more, they are one
  chunk of n tokens after C/n - n/2 others. Kernels take whole prompts: between two numbers of prompts
  the time is interpolated.
* b decode rows that attend to C tokens together: rows of C/b tokens each.

What attention works off are pairs of a row and a KV head with its group of query heads. Where a number of
KV heads was not measured (Phi-4 has 10), the next lower power of two stands in, in groups of the same size,
with as many times more rows and context: 10 heads of b rows are 8 heads of 1.25 b rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from coral.errors import ProfileError
from coral.types.model import ModelShape
from coral_profiler_aiconfigurator import layer
from coral_profiler_aiconfigurator.kernels import Kernels, first_that_is_measured
from coral_profiler_aiconfigurator.monotone import Curve, Floats, Surface
from coral_profiler_aiconfigurator.systems import Formats

MOST_TOKENS = 32768
"""Tokens of the longest step that is sampled; longer ones are in proportion."""
MOST_ROWS = 4096
MOST_GPUS = 8
LONGEST = 131072
"""Tokens of the longest request that is sampled."""


def _ladder(most: int, per_octave: int) -> Floats:
    """1 to `most`, so many nodes an octave, whole numbers."""
    steps = np.arange(per_octave * math.log2(most) + 1)
    return np.unique(np.round(2.0 ** (steps / per_octave)))


class Tables(Struct, frozen=True, eq=False, kw_only=True):
    """Of one layer, unless said otherwise."""

    products: Curve
    """Dense matrices, norms and experts."""
    reduce: Curve | None
    """One all-reduce."""
    gather: Curve | None
    """The logits' parts brought together, over logit rows."""
    embedding: Curve
    logits: Curve
    """Over logit rows."""
    prompts: Surface
    rows: Surface
    prompts_in_window: Surface | None
    """None where every layer has full attention, or no kernel of that window was measured."""
    rows_in_window: Surface | None


def sample(kernels: Kernels, shape: ModelShape, formats: Formats, tp: int, window: int) -> Tables:
    """Raises ProfileError where a kernel that the model needs was not measured."""
    if tp > MOST_GPUS:
        raise ProfileError(
            f"collectives among {tp} GPUs were not measured", mend=f"measured: up to {MOST_GPUS} of a machine"
        )
    full = _attention(kernels, shape, formats, tp, 0)
    windowed = _windowed(kernels, shape, formats, tp, window)
    alone = tp == 1
    return Tables(
        products=_products(kernels, shape, formats, tp),
        reduce=None if alone else _curve(kernels, layer.all_reduce(shape, tp), MOST_TOKENS),
        gather=None if alone else _curve(kernels, layer.gather(shape, tp), MOST_ROWS),
        embedding=_curve(kernels, layer.embedding(shape, tp), MOST_TOKENS),
        logits=_curve(kernels, layer.logits(shape, tp), MOST_ROWS),
        prompts=full[0],
        rows=full[1],
        prompts_in_window=windowed[0],
        rows_in_window=windowed[1],
    )


def _products(kernels: Kernels, shape: ModelShape, formats: Formats, tp: int) -> Curve:
    """Dense part and experts each in the first of their formats that was measured; experts that were not
    measured split were so spread over the GPUs."""

    def dense(name: str) -> Curve:
        return _curve(kernels, layer.dense_operators(shape, tp, name), MOST_TOKENS)

    def experts(name: str) -> Curve:
        try:
            return _curve(kernels, layer.expert_operators(shape, tp, 1, name), MOST_TOKENS)
        except ProfileError:
            if tp == 1:
                raise
            return _curve(kernels, layer.expert_operators(shape, 1, tp, name), MOST_TOKENS)

    products: Curve = first_that_is_measured(formats.dense, dense)
    if shape.moe is None:
        return products
    of_experts: Curve = first_that_is_measured(formats.experts, experts)
    return Curve(products.nodes, products.seconds + of_experts.seconds)


def _curve(kernels: Kernels, operators: list[Any], most: int) -> Curve:
    """Each operator made monotone by itself, then all together."""
    asked = kernels.prepared(operators)
    nodes = _ladder(most, 4)
    answers = [kernels.seconds(asked, int(node)) for node in nodes]
    total = np.zeros(len(nodes))
    for name in answers[0]:
        total += Curve.through(nodes, np.array([answer[name] for answer in answers])).seconds
    return Curve(nodes, total)


def _windowed(
    kernels: Kernels, shape: ModelShape, formats: Formats, tp: int, window: int
) -> tuple[Surface | None, Surface | None]:
    if not window:
        return None, None
    try:
        return _attention(kernels, shape, formats, tp, window)
    except ProfileError:
        return None, None


def _attention(
    kernels: Kernels, shape: ModelShape, formats: Formats, tp: int, window: int
) -> tuple[Surface, Surface]:
    heads = layer.Heads.of(shape, tp)
    try:
        return _attention_of(kernels, shape, formats, heads, window)
    except ProfileError:
        measured = heads.in_powers_of_two()
        if measured == heads:
            raise
        return _attention_of(kernels, shape, formats, measured, window)


def _attention_of(
    kernels: Kernels, shape: ModelShape, formats: Formats, heads: layer.Heads, window: int
) -> tuple[Surface, Surface]:
    of_prompts = kernels.prepared(layer.prompt_attention(shape, heads, formats, window))
    of_rows = kernels.prepared(layer.row_attention(shape, heads, formats, window))
    longest = min(LONGEST, max(shape.max_positions, 1024))

    def prompts(tokens: float, attended: float) -> float:
        each = min(tokens, 2.0 * attended / tokens)
        before = round(max(0.0, attended / tokens - tokens / 2.0))
        length = max(1, round(each))
        return _between(
            lambda n: kernels.prompts_s(of_prompts, n, length, before), heads.times * tokens / each
        )

    def rows(count: float, attended: float) -> float:
        length = max(1, round(attended / count))
        return _between(lambda n: kernels.rows_s(of_rows, n, length), heads.times * count)

    return (
        _surface(prompts, _ladder(MOST_TOKENS, 2), longest, least=0.5),
        _surface(rows, _ladder(MOST_ROWS, 2), longest, least=1.0),
    )


def _between(seconds: Callable[[int], float], count: float) -> float:
    """Linear between two whole numbers, the lower one at least 1."""
    below = max(1, math.floor(count + 1e-9))
    share = count - below
    found = seconds(below)
    return found if share < 1e-9 else found + share * (seconds(below + 1) - found)


def _surface(
    seconds: Callable[[float, float], float], rows: Floats, longest: int, *, least: float
) -> Surface:
    """Sampled where a row attends to `least` ... `longest` tokens; constant and in proportion outside."""
    attended = _ladder(int(rows[-1]) * longest, 2)
    found = np.full((len(rows), len(attended)), np.nan)
    for i, n in enumerate(rows):
        inside = np.flatnonzero((attended >= least * n) & (attended <= longest * n))
        for k in inside:
            found[i, k] = seconds(n, attended[k])
        found[i, : inside[0]] = found[i, inside[0]]
        beyond = slice(inside[-1] + 1, None)
        found[i, beyond] = found[i, inside[-1]] * attended[beyond] / attended[inside[-1]]
    return Surface.through(rows, attended, found)
