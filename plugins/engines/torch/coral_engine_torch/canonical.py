"""KV between this cache and the canonical layout (`coral.types.stage.KvPiece`), and leases on blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coral.errors import EngineError
from coral.types.stage import KvPiece, KvSection
from coral_engine_torch.kv import KvCache
from coral_engine_torch.rows import dtype_of, fill, name_of, to_buffer


class HeldLayer(NamedTuple):
    """A layer of this stage: its number in the model, its place in the cache, its window."""

    layer: int
    place: int
    window: int


class BlockLease:
    """Keeps a request's blocks from being reused until `done` or `cancel`; a second end does nothing."""

    def __init__(self, cache: KvCache, blocks: Sequence[int], piece: KvPiece) -> None:
        self._cache, self._blocks, self._piece = cache, list(blocks), piece
        cache.pool.hold(self._blocks)

    @property
    def piece(self) -> KvPiece:
        return self._piece

    def done(self) -> None:
        blocks, self._blocks = self._blocks, []
        self._cache.pool.drop(blocks)

    def cancel(self) -> None:
        self.done()


def export(
    cache: KvCache, blocks: Sequence[int], layers: Sequence[HeldLayer], tokens: tuple[int, int], request: str
) -> KvPiece:
    """Tokens `[a, b)` of these layers; of a windowed layer what later tokens may still attend to."""
    start, end = tokens
    by_low: dict[int, list[HeldLayer]] = {}
    for held in layers:
        low = max(start, min(end, end - held.window + 1)) if held.window else start
        by_low.setdefault(low, []).append(held)
    sections = []
    for low, group in by_low.items():
        slots = _slots(cache, blocks, low, end)
        rows = cache.read([held.place for held in group], slots).cpu()  # one copy from the device for all
        for held, (k, v) in zip(group, rows, strict=True):
            sections.append(
                KvSection(
                    layer=held.layer,
                    kind="window" if held.window else "full",
                    dtype=name_of(cache.dtype),
                    shape=(end - low, k.shape[1], k.shape[2]),
                    token_start=low,
                    k=to_buffer(k),
                    v=to_buffer(v),
                )
            )
    sections.sort(key=lambda section: section.layer)
    return KvPiece(request=request, tokens=end, sections=tuple(sections))


def load(
    cache: KvCache,
    blocks: Sequence[int],
    layers: Sequence[HeldLayer],
    pieces: Sequence[KvPiece],
    first: int,
) -> int:
    """Writes the pieces' sections of these layers, tokens from `first` on; returns the position they reach.

    Other layers' sections are ignored. Raises EngineError, before anything is written, where tokens or heads
    that later tokens may attend to are missing, or a section is not of this cache's shape.
    """
    tokens = max([first, *(piece.tokens for piece in pieces)])
    capacity = len(blocks) * cache.block_size
    if tokens > capacity:
        raise EngineError(
            f"KV of {tokens} tokens for a request with room for {capacity}", mend="reserve more first"
        )
    places = {held.layer: held for held in layers}
    sections = [section for piece in pieces for section in piece.sections if section.layer in places]
    _check(cache, places, sections, first, tokens)
    alike: dict[tuple[int, int, tuple[int, int, int], str], list[KvSection]] = {}
    for section in sections:
        key = (section.token_start, section.head_start, section.shape, section.dtype)
        alike.setdefault(key, []).append(section)
    for (start, head, shape, dtype), group in alike.items():
        data = torch.empty(len(group), 2, *shape, dtype=dtype_of(dtype))
        for part, section in zip(data, group, strict=True):
            fill(part[0], section.k, f"K of layer {section.layer}")
            fill(part[1], section.v, f"V of layer {section.layer}")
        slots = _slots(cache, blocks, start, start + shape[0])
        held = [places[section.layer].place for section in group]
        cache.write(held, slots, slice(head, head + shape[1]), data.to(slots.device, cache.dtype))
    return tokens


def _check(
    cache: KvCache, places: dict[int, HeldLayer], sections: Sequence[KvSection], first: int, tokens: int
) -> None:
    heads, width = cache.keys(0).shape[2:]
    seen = {layer: np.zeros((tokens - first, heads), dtype=bool) for layer in places}
    for section in sections:
        count, part, size = section.shape
        where = f"KV of layer {section.layer}"
        if section.kind not in ("full", "window") or section.scales is not None:
            raise EngineError(
                f"{where}: the torch engine takes no {section.kind} sections of {section.dtype}"
            )
        held_bytes = count * part * size * dtype_of(section.dtype).itemsize
        for data in (section.k, section.v):
            if memoryview(data).nbytes != held_bytes:
                raise EngineError(f"{where} has {memoryview(data).nbytes} bytes, expected {held_bytes}")
        inside = section.token_start + count <= tokens and section.head_start + part <= heads
        if size != width or not inside or section.token_start < first or section.head_start < 0:
            raise EngineError(
                f"{where}: a section of shape {section.shape} at token {section.token_start}, head"
                f" {section.head_start} does not fit tokens [{first}, {tokens}) of {heads} heads of {width}"
            )
        seen[section.layer][section.token_start - first :, section.head_start :][:count, :part] = True
    for layer, held in places.items():
        low = max(first, tokens - held.window + 1) if held.window else first
        if not seen[layer][low - first :].all():
            raise EngineError(
                f"KV of layer {layer}: tokens or heads are missing in [{low}, {tokens})",
                mend="import the pieces of all layers and heads together",
            )


def _slots(cache: KvCache, blocks: Sequence[int], low: int, high: int) -> Tensor:
    at = np.arange(low, high)
    size = cache.block_size
    slots = np.asarray(blocks, dtype=np.int64)[at // size] * size + at % size
    return torch.from_numpy(slots).to(cache.keys(0).device)
