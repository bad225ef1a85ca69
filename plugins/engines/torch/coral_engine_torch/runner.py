"""The StageRunner: requests, steps and KV of one stage."""

from __future__ import annotations

import time
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from coral.errors import EngineError
from coral.types.request import GenerateRequest
from coral.types.stage import Chunk, EngineStats, KvCapacity, KvPiece, StageSpec, StepResult
from coral_engine_torch import canonical
from coral_engine_torch.batch import Span, build
from coral_engine_torch.canonical import BlockLease, HeldLayer
from coral_engine_torch.rows import join, pack
from coral_engine_torch.sampler import sample
from coral_engine_torch.sequence import Sequence
from coral_engine_torch.stage import LoadedStage, load_stage


class TorchStageRunner:
    """See `coral.hookspecs.engine.StageRunner`. Called from one thread."""

    def __init__(self, spec: StageSpec, loaded: LoadedStage) -> None:
        self._spec, self._loaded = spec, loaded
        self._cache, self._executor = loaded.cache, loaded.executor
        windows = loaded.arch.windows[spec.first_layer : spec.end_layer]
        self._windows = windows
        self._layers = [HeldLayer(spec.first_layer + i, i, window) for i, window in enumerate(windows)]
        self._sequences: dict[str, Sequence] = {}
        self._steps = 0
        self._step_seconds = 0.0

    def capacity(self) -> KvCapacity:
        return KvCapacity(
            blocks=self._cache.pool.total, block_size=self._cache.block_size, bytes=self._cache.bytes
        )

    def open(self, request: GenerateRequest, reserve: int) -> None:
        if request.id in self._sequences:
            raise EngineError(f"request {request.id} is open already", mend="release it first")
        self._check_length(request.id, reserve)
        self._check_vocabulary(request.id, (*request.prompt_ids, *request.generated))
        blocks = self._cache.take(reserve)
        self._sequences[request.id] = Sequence(request, blocks, reserve, generated=list(request.generated))

    def extend(self, request: str, tokens: int) -> None:
        sequence = self._sequence(request)
        self._check_length(request, tokens)
        held = len(sequence.blocks) * self._cache.block_size
        if tokens > held:
            sequence.blocks += self._cache.take(tokens - held)
        sequence.reserved = max(sequence.reserved, tokens)

    def step(self, chunks: Many[Chunk]) -> StepResult:
        began = time.perf_counter()
        sequences = self._check(chunks)
        if not chunks:
            return StepResult()
        x = self._input(chunks, sequences)
        row, spans = 0, []
        for chunk, sequence in zip(chunks, sequences, strict=True):
            spans.append(Span(row, chunk.start, chunk.n, sequence.blocks))
            row += chunk.n
        batch = build(spans, self._cache.block_size, self._windows, self._loaded.device)
        hidden = self._executor.forward(x, batch)
        for chunk, sequence in zip(chunks, sequences, strict=True):
            sequence.computed = chunk.start + chunk.n
        result = (
            self._last(hidden, spans, sequences) if self._spec.is_last else StepResult(hidden=pack(hidden))
        )
        self._steps += 1
        self._step_seconds += time.perf_counter() - began
        return result

    def feed(self, request: str, token: int) -> None:
        """A stage that is first and last has sampled the token itself and knows it."""
        sequence = self._sequence(request)
        if not self._spec.is_last:
            sequence.generated.append(token)

    def export_kv(self, request: str, layers: tuple[int, int], tokens: tuple[int, int]) -> BlockLease:
        sequence, spec = self._sequence(request), self._spec
        (a, b), (start, end) = layers, tokens
        if not spec.first_layer <= a < b <= spec.end_layer:
            raise EngineError(f"layers [{a}, {b}) are not all in [{spec.first_layer}, {spec.end_layer})")
        if not 0 <= start < end <= sequence.computed:
            raise EngineError(f"tokens [{start}, {end}) of {request}: {sequence.computed} are computed")
        held = self._layers[a - spec.first_layer : b - spec.first_layer]
        piece = canonical.export(self._cache, sequence.blocks, held, tokens, request)
        return BlockLease(self._cache, sequence.blocks, piece)

    def import_kv(self, request: str, pieces: Many[KvPiece]) -> None:
        sequence = self._sequence(request)
        if sequence.computed != sequence.imported:
            raise EngineError(
                f"request {request} has computed {sequence.computed - sequence.imported} tokens",
                mend="import first",
            )
        reach = canonical.load(self._cache, sequence.blocks, self._layers, pieces, sequence.imported)
        sequence.computed = sequence.imported = reach

    def resume(self, request: str, tokens: Many[int]) -> None:
        sequence = self._sequence(request)
        if sequence.computed != sequence.known:
            raise EngineError(
                f"request {request} cannot go on: {sequence.computed} of {sequence.known} tokens are here",
                mend="import the rest first",
            )
        self._check_vocabulary(request, tokens)
        sequence.generated.extend(tokens)

    def release(self, requests: Many[str]) -> None:
        for request in requests:
            if sequence := self._sequences.pop(request, None):
                self._cache.pool.drop(sequence.blocks)

    def stats(self) -> EngineStats:
        return EngineStats(
            free_blocks=self._cache.pool.free,
            total_blocks=self._cache.pool.total,
            requests=len(self._sequences),
            steps=self._steps,
            step_seconds=self._step_seconds,
            weight_bytes=self._loaded.weight_bytes,
            load_seconds=self._loaded.load_seconds,
            bytes_read=self._loaded.bytes_read,
        )

    def close(self) -> None:
        self.release(list(self._sequences))

    def _sequence(self, request: str) -> Sequence:
        if request not in self._sequences:
            raise EngineError(f"request {request} is not open", mend="open it before its first chunk")
        return self._sequences[request]

    def _check_length(self, request: str, tokens: int) -> None:
        if not 1 <= tokens <= self._spec.max_model_len:
            raise EngineError(
                f"request {request}: {tokens} tokens, at most {self._spec.max_model_len} fit a sequence"
            )

    def _check_vocabulary(self, request: str, tokens: Many[int]) -> None:
        vocab = self._loaded.arch.vocab
        for token in tokens:
            if not 0 <= token < vocab:
                raise EngineError(f"request {request}: token {token} is not in the vocabulary of {vocab}")

    def _check(self, chunks: Many[Chunk]) -> list[Sequence]:
        """The chunks' sequences; EngineError before anything has changed."""
        spec, seen = self._spec, set[str]()
        for chunk in chunks:
            sequence = self._sequence(chunk.request)
            where = f"chunk [{chunk.start}, {chunk.start + chunk.n}) of {chunk.request}"
            if chunk.request in seen:
                raise EngineError(f"{where}: a second chunk in one step", mend="send it in the next step")
            seen.add(chunk.request)
            if chunk.n < 1 or chunk.start != sequence.computed:
                raise EngineError(f"{where} is out of order: {sequence.computed} tokens are computed")
            if chunk.start + chunk.n > sequence.reserved:
                raise EngineError(f"{where}: {sequence.reserved} tokens are reserved", mend="extend it first")
        tokens = sum(chunk.n for chunk in chunks)
        if tokens > spec.max_step_tokens or len(chunks) > spec.max_step_requests:
            raise EngineError(
                f"a step of {tokens} tokens of {len(chunks)} requests; at most {spec.max_step_tokens} tokens"
                f" of {spec.max_step_requests} requests fit"
            )
        return [self._sequences[chunk.request] for chunk in chunks]

    def _input(self, chunks: Many[Chunk], sequences: Many[Sequence]) -> Tensor:
        loaded = self._loaded
        if not self._spec.is_first:
            parts = [(chunk.request, chunk.n, chunk.rows) for chunk in chunks]
            return join(parts, loaded.arch.hidden, loaded.dtype).to(loaded.device)
        ids: list[int] = []
        for chunk, sequence in zip(chunks, sequences, strict=True):
            tokens = chunk.token_ids
            if tokens is None:
                tokens = sequence.tokens(chunk.start, chunk.n)
            if len(tokens) != chunk.n or not all(0 <= token < loaded.arch.vocab for token in tokens):
                raise EngineError(
                    f"chunk of {chunk.request} at {chunk.start}: {len(tokens)} token ids for {chunk.n}"
                    f" positions, in a vocabulary of {loaded.arch.vocab}"
                )
            ids.extend(tokens)
        return self._executor.embed(torch.tensor(ids, device=loaded.device))

    def _last(self, hidden: Tensor, spans: Many[Span], sequences: Many[Sequence]) -> StepResult:
        complete = [i for i, sequence in enumerate(sequences) if sequence.computed == sequence.known]
        if not complete:
            return StepResult()
        rows = torch.tensor([spans[i].row + spans[i].n - 1 for i in complete], device=hidden.device)
        ready = [sequences[i] for i in complete]
        logits = self._executor.logits(hidden.index_select(0, rows))
        sampled = sample(logits, ready, self._spec.max_model_len)
        for sequence, token in zip(ready, sampled, strict=True):
            sequence.generated.append(token.token)
        return StepResult(sampled=tuple(sampled))


def load(spec: StageSpec) -> TorchStageRunner:
    """Loads the stage's layers and allocates its KV; see `load_stage` for what it refuses."""
    return TorchStageRunner(spec, load_stage(spec))
