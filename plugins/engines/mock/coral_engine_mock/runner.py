"""The worker's half: a StageRunner that sleeps as long as a step costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coral.errors import EngineError
from coral.types.request import GenerateRequest
from coral.types.stage import Chunk, EngineStats, HiddenRows, KvCapacity, KvPiece, StageSpec, StepResult
from coral.types.step import StepWork
from coral_engine_mock.blocks import BlockTable
from coral_engine_mock.kv import MockLease, export, restore
from coral_engine_mock.sequence import MockSequence
from coral_engine_mock.settings import MockSettings
from coral_engine_mock.tokens import Floats, embed

HANG_S = 3600.0
ALWAYS = -1


class MockRunner:
    def __init__(self, spec: StageSpec) -> None:
        settings = MockSettings.of(spec.options)
        self._spec = spec
        self._settings = settings
        self._faulty = settings.fail_node in ("", spec.node)
        self._cost = settings.cost.step_cost(spec.node_type.gpu)
        self._blocks = BlockTable(settings.kv_blocks, settings.block_size)
        self._open: dict[str, MockSequence] = {}
        self._steps = self._exports = self._imports = 0
        self._step_s = 0.0
        time.sleep(settings.load)
        if self._faulty and settings.fail_at_load:
            raise EngineError(settings.fail_at_load)

    def capacity(self) -> KvCapacity:
        return KvCapacity(blocks=self._blocks.total, block_size=self._blocks.block_size, bytes=0)

    def open(self, request: GenerateRequest, reserve: int) -> None:
        self._blocks.open(request.id, reserve)
        self._open[request.id] = MockSequence.of(request)
        self._note("open", request.id)

    def extend(self, request: str, tokens: int) -> None:
        self._blocks.extend(request, tokens)

    def step(self, chunks: Sequence[Chunk]) -> StepResult:
        began = time.perf_counter()
        self._steps += 1
        self._fault()
        self._check(chunks)
        layers = self._spec.end_layer - self._spec.first_layer
        arrived = [self._rows(chunk) for chunk in chunks]
        sampled = []
        completes = 0
        for chunk in chunks:
            sequence = self._open[chunk.request]
            sequence.done = chunk.start + chunk.n
            if sequence.done == len(sequence.known):
                completes += 1
                if self._spec.is_last:
                    sampled.append(sequence.sample(self._settings.vocab, self._settings.tokens))
        hidden = None
        if not self._spec.is_last:
            rows = np.concatenate(arrived) + np.float32(layers)
            hidden = HiddenRows(dtype="float32", shape=(rows.shape[0], rows.shape[1]), data=rows.data)
        self._sleep(chunks, layers, completes, began)
        return StepResult(hidden=hidden, sampled=tuple(sampled))

    def feed(self, request: str, token: int) -> None:
        self._open[request].learn(token)

    def export_kv(self, request: str, layers: tuple[int, int], tokens: tuple[int, int]) -> MockLease:
        sequence, spec = self._sequence(request), self._spec
        if not spec.first_layer <= layers[0] < layers[1] <= spec.end_layer:
            raise EngineError(f"layers {layers} are not all in [{spec.first_layer}, {spec.end_layer})")
        self._exports += 1
        if self._faulty and self._settings.fail_at_export in (ALWAYS, self._exports):
            raise EngineError(f"export {self._exports} fails, as it was told to")
        piece = export(sequence, layers, tokens)
        self._blocks.lease(request)
        return MockLease(piece, lambda: self._blocks.end_lease(request))

    def import_kv(self, request: str, pieces: Sequence[KvPiece]) -> None:
        self._imports += 1
        if self._faulty and self._settings.fail_at_import in (ALWAYS, self._imports):
            raise EngineError(f"import {self._imports} fails, as it was told to")
        restore(self._sequence(request), (self._spec.first_layer, self._spec.end_layer), pieces)

    def resume(self, request: str, tokens: Sequence[int]) -> None:
        sequence = self._sequence(request)
        if sequence.done != len(sequence.known):
            raise EngineError(f"{request}: {sequence.done} of {len(sequence.known)} known tokens are here")
        for token in tokens:
            sequence.learn(token)

    def release(self, requests: Sequence[str]) -> None:
        for request in requests:
            self._open.pop(request, None)
            self._blocks.release(request)
            self._note("release", request)

    def stats(self) -> EngineStats:
        return EngineStats(
            free_blocks=self._blocks.free,
            total_blocks=self._blocks.total,
            requests=len(self._open),
            steps=self._steps,
            step_seconds=self._step_s,
            load_seconds=self._settings.load,
        )

    def close(self) -> None:
        self.release(list(self._open))

    def _sequence(self, request: str) -> MockSequence:
        if request not in self._open:
            raise EngineError(f"{request} is not open")
        return self._open[request]

    def _note(self, what: str, request: str) -> None:
        """A line of the diary: seconds since the epoch, what, which request."""
        if self._settings.diary:
            page = Path(self._settings.diary) / self._spec.node.replace("/", "-")
            with page.open("a") as file:
                file.write(f"{time.time()} {what} {request}\n")

    def _fault(self) -> None:
        if self._faulty and self._steps == self._settings.hang_at_step:
            time.sleep(HANG_S)
        if self._faulty and self._steps == self._settings.fail_at_step:
            raise EngineError(f"step {self._steps} fails, as it was told to")

    def _check(self, chunks: Sequence[Chunk]) -> None:
        """Raise EngineError for what no engine can run; then nothing has run."""
        if len({chunk.request for chunk in chunks}) != len(chunks):
            raise EngineError("two chunks of one request in a step")
        for chunk in chunks:
            sequence = self._sequence(chunk.request)
            if chunk.start != sequence.done or chunk.n < 1:
                raise EngineError(
                    f"{chunk.request}: chunk of {chunk.n} at {chunk.start}, expected at {sequence.done}"
                )
            if chunk.start + chunk.n > self._blocks.reserved(chunk.request):
                raise EngineError(
                    f"{chunk.request}: position {chunk.start + chunk.n - 1} is beyond the "
                    f"{self._blocks.reserved(chunk.request)} tokens reserved"
                )

    def _rows(self, chunk: Chunk) -> Floats:
        """What goes through this stage's layers; rows that are not what must come raise EngineError."""
        if self._spec.is_first:
            if chunk.token_ids is None or len(chunk.token_ids) != chunk.n:
                raise EngineError(f"{chunk.request}: stage 0 needs {chunk.n} token ids")
            return embed(chunk.request, chunk.start, chunk.token_ids, self._settings.width)
        if chunk.rows is None:
            raise EngineError(f"{chunk.request}: stage {self._spec.stage} needs hidden rows")
        rows = np.frombuffer(chunk.rows.data, dtype=np.float32).reshape(chunk.rows.shape)
        if self._spec.is_last:
            known = self._open[chunk.request].known[chunk.start : chunk.start + chunk.n]
            expected = embed(chunk.request, chunk.start, known, self._settings.width)
            expected += np.float32(self._spec.first_layer)
            if rows.shape != expected.shape or not np.array_equal(rows, expected):
                raise EngineError(
                    f"{chunk.request}: rows [{chunk.start}, {chunk.start + chunk.n}) are not what was sent"
                )
        return rows

    def _sleep(self, chunks: Sequence[Chunk], layers: int, completes: int, began: float) -> None:
        prompts = [chunk for chunk in chunks if chunk.n > 1]
        decodes = [chunk for chunk in chunks if chunk.n == 1]
        work = StepWork(
            prefill_tokens=sum(chunk.n for chunk in prompts),
            prefill_context=sum(chunk.n * (chunk.start + (chunk.n + 1) / 2) for chunk in prompts),
            decode_rows=len(decodes),
            decode_context=sum(chunk.start + 1 for chunk in decodes),
            logit_rows=completes,
        )
        cost_s = self._cost.step_s(work, layers, first=self._spec.is_first, last=self._spec.is_last)
        left_s = cost_s - (time.perf_counter() - began)
        if left_s > 0:
            time.sleep(left_s)
        self._step_s += time.perf_counter() - began


def load(spec: StageSpec) -> MockRunner:
    return MockRunner(spec)
