"""Layers of one shape with random weights, and steps over them of any make-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from coral.errors import EngineError
from coral.types.step import StepWork
from coral_engine_torch.architecture import Architecture
from coral_engine_torch.batch import Span, build
from coral_engine_torch.budget import block_bytes, weight_bytes
from coral_engine_torch.executor import Executor
from coral_engine_torch.kv import KvCache
from coral_engine_torch.rope import Rope
from coral_engine_torch.weights import Loader, RandomSource, Weights

CACHE_BYTES = 96 << 20
"""More than a CPU's last-level cache: layers that are cycled through must come from memory."""
POSITIONS = 2048
KV_TOKENS = 9_216


@dataclass(frozen=True, slots=True)
class Case:
    """A step: decode rows with these contexts, and one chunk of `chunk` prompt tokens from `start`.

    With `last`, all decode rows and the chunk's last token pass the output head and an argmax.
    """

    layers: int
    rows: tuple[int, ...] = ()
    chunk: int = 0
    start: int = 0
    first: bool = False
    last: bool = False

    @property
    def work(self) -> StepWork:
        return StepWork(
            prefill_tokens=self.chunk,
            prefill_context=self.chunk * (self.start + (self.chunk + 1) / 2),
            decode_rows=len(self.rows),
            decode_context=sum(self.rows),
            logit_rows=(len(self.rows) + (self.chunk > 0)) if self.last else 0,
        )


class Bench:
    """Holds `held` layers with embedding and head; a step runs over any `layers` of them in turn."""

    def __init__(
        self, arch: Architecture, dtype: torch.dtype, device: torch.device, block_size: int, held: int
    ) -> None:
        self._arch = replace(arch, layers=held, windows=arch.windows[:held], tied=True)
        self._dtype, self._device, self._block_size = dtype, device, block_size
        source = RandomSource(arch.family)
        loader = Loader(self._arch, source, dtype, device)
        self._weights = loader.stage(0, held, embedding=True, head=True)
        self.counts = (max(1, held // 4), max(1, held // 2))
        layers, blocks = self.counts[1], KV_TOKENS // block_size
        self._cache = KvCache(layers, blocks, block_size, arch.kv_heads, arch.head_dim, dtype, device)
        self._rope = Rope(self._arch, POSITIONS, dtype, device)
        self._next = 0

    @classmethod
    def within(
        cls, arch: Architecture, dtype: torch.dtype, device: torch.device, block_size: int, *, memory: int
    ) -> Bench:
        """As many layers as make the weights too large for a cache, within `memory` bytes and the model."""
        layer = weight_bytes(arch, 1, dtype.itemsize, first=False, last=False)
        ends = weight_bytes(replace(arch, tied=True), 0, dtype.itemsize, first=True, last=True)
        keys = block_bytes(arch, 1, KV_TOKENS, dtype.itemsize)
        room = (memory - ends) // (layer + keys)
        held = min(arch.layers, max(4, -(-CACHE_BYTES // layer)), room)
        if held < 1:
            raise EngineError(
                f"one layer ({layer >> 20} MiB) and the embedding ({ends >> 20} MiB) do not fit"
                f" half of the free memory ({memory >> 20} MiB)",
                mend="measure where there is more memory, or serve a smaller model",
            )
        return cls(arch, dtype, device, block_size, held)

    def prepare(self, case: Case, seed: int) -> Callable[[], None]:
        """A step that is ready to be timed; inputs and the batch's geometry are part of it."""
        spans, row, block = [], 0, 0
        for start, n in [(context - 1, 1) for context in case.rows] + [(case.start, case.chunk)]:
            if n:
                count = -(-(start + n) // self._block_size)
                at = min(block, self._cache.pool.total - count)  # long contexts may share blocks
                spans.append(Span(row, start, n, range(at, at + count)))
                row, block = row + n, at + count
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(self._arch.vocab, (row,), generator=generator).to(self._device)
        x = torch.randn(row, self._arch.hidden, generator=generator).to(self._device, self._dtype)
        ends = torch.tensor([span.row + span.n - 1 for span in spans], device=self._device)
        executor = self._executor(case.layers)

        def step() -> None:
            batch = build(spans, self._block_size, self._arch.windows, self._device)
            hidden = executor.forward(executor.embed(ids) if case.first else x, batch)
            if case.last:
                executor.logits(hidden.index_select(0, ends)).argmax(-1).tolist()

        return step

    def _executor(self, layers: int) -> Executor:
        held = self._weights.layers
        chosen = tuple(held[(self._next + i) % len(held)] for i in range(layers))
        self._next = (self._next + layers) % len(held)
        weights = self._weights
        part = Weights(0, chosen, weights.embedding, weights.norm, weights.head, weights.bytes)
        return Executor(self._arch, part, self._cache, self._rope)
