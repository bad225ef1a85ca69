"""The geometry of one step: which rows are whose, where their keys lie, who attends to what.

Rows of one token are decoded in groups of like context length, gathered and padded; longer chunks attend
one by one, in pieces of query rows. Both are cut so that what a step allocates stays bounded, whatever the
contexts are. For each attention window in the model there is one `Reach`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

GROUP_TOKENS = 16_384
"""Most keys (rows × padded context) that one group of decode rows gathers, unless one row has more."""
PIECE_SCORES = 1 << 20
"""Most scores (query rows × context) per head that one piece of a chunk makes, unless one row has more."""


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk: batch rows [row, row + n) are positions [start, start + n) of a sequence with `blocks`."""

    row: int
    start: int
    n: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """B rows of one token: `rows [B]`, `blocks [B * width]`, `mask [B, 1, 1, width * block_size]`."""

    rows: Tensor
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [low, high) of one chunk attend to the keys in `blocks`; `mask [high - low, keys]`.

    `blocks` None: the chunk is the sequence's beginning, and attends causally to its own rows.
    """

    low: int
    high: int
    blocks: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Reach:
    decodes: tuple[DecodeGroup, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """`positions`, `slots` `[T]`: each row's position and its place in the cache (block × size + offset)."""

    rows: int
    positions: Tensor
    slots: Tensor
    reaches: dict[int, Reach]


def build(spans: Sequence[Span], block_size: int, windows: Sequence[int], device: torch.device) -> Batch:
    """The batch of these spans, for layers with any of these windows (0 = full)."""
    positions = [np.arange(span.start, span.start + span.n) for span in spans]
    slots = [
        np.asarray(span.blocks, dtype=np.int64)[at // block_size] * block_size + at % block_size
        for span, at in zip(spans, positions, strict=True)
    ]
    decodes = [span for span in spans if span.n == 1]
    chunks = [span for span in spans if span.n > 1]
    reaches = {}
    for window in sorted(set(windows)):
        groups = group_decodes(decodes, block_size, window)
        reaches[window] = Reach(
            tuple(_decode(group, block_size, window, device) for group in groups),
            tuple(piece for span in chunks for piece in _pieces(span, block_size, window, device)),
        )
    return Batch(
        rows=sum(span.n for span in spans),
        positions=_tensor(np.concatenate(positions), device),
        slots=_tensor(np.concatenate(slots), device),
        reaches=reaches,
    )


def first_key(position: int, window: int) -> int:
    """The first position that `position` attends to."""
    return max(0, position - window + 1) if window else 0


def _blocks_of(span: Span, block_size: int, window: int) -> tuple[int, int]:
    """The range of the span's table that its first row's reach and its last row's position lie in."""
    return first_key(span.start, window) // block_size, (span.start + span.n - 1) // block_size + 1


def group_decodes(spans: Sequence[Span], block_size: int, window: int) -> list[list[Span]]:
    """Rows of like length together: padding at most doubles a row, and GROUP_TOKENS is kept."""

    def width(span: Span) -> int:
        low, high = _blocks_of(span, block_size, window)
        return high - low

    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (-width(span), span.row)):
        widest = width(groups[-1][0]) if groups else 0
        fits = (len(groups[-1]) + 1) * widest * block_size <= GROUP_TOKENS if groups else False
        if fits and widest <= max(2 * width(span), 4):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _decode(group: Sequence[Span], block_size: int, window: int, device: torch.device) -> DecodeGroup:
    ranges = [_blocks_of(span, block_size, window) for span in group]
    width = max(high - low for low, high in ranges)
    table = np.empty((len(group), width), dtype=np.int64)
    origins = np.array([low * block_size for low, _ in ranges])
    for i, (span, (low, high)) in enumerate(zip(group, ranges, strict=True)):
        table[i, : high - low] = span.blocks[low:high]
        table[i, high - low :] = span.blocks[low]  # padding: any block of the row's own
    keys = origins[:, None] + np.arange(width * block_size)
    at = np.array([span.start for span in group])[:, None]
    mask = keys <= at
    if window:
        mask &= keys > at - window
    return DecodeGroup(
        rows=_tensor(np.array([span.row for span in group]), device),
        blocks=_tensor(table.reshape(-1), device),
        mask=torch.from_numpy(mask)[:, None, None].to(device),
    )


def _pieces(span: Span, block_size: int, window: int, device: torch.device) -> list[Piece]:
    pieces = []
    step = max(1, PIECE_SCORES // (span.start + span.n))
    for offset in range(0, span.n, step):
        n = min(step, span.n - offset)
        row, start = span.row + offset, span.start + offset
        if span.start == 0 and (not window or span.n <= window) and offset == 0:
            pieces.append(Piece(row, row + n, None, None))
            continue
        part = Span(row, start, n, span.blocks)
        low, high = _blocks_of(part, block_size, window)
        keys = np.arange(low * block_size, high * block_size)
        at = np.arange(start, start + n)[:, None]
        mask = keys <= at
        if window:
            mask &= keys > at - window
        table = np.asarray(span.blocks[low:high], dtype=np.int64)
        pieces.append(Piece(row, row + n, _tensor(table, device), torch.from_numpy(mask).to(device)))
    return pieces


def _tensor(values: Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)
