"""KV in the canonical layout: one number per position and layer, so that a wrong piece is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coral.errors import EngineError
from coral.types.stage import KvPiece, KvSection
from coral_engine_mock.sequence import MockSequence
from coral_engine_mock.tokens import Floats, embed


class MockLease:
    """Ends once, by `done` or `cancel`."""

    def __init__(self, piece: KvPiece, end: Callable[[], None]) -> None:
        self.piece = piece
        self._end: Callable[[], None] | None = end

    def done(self) -> None:
        if self._end is not None:
            end, self._end = self._end, None
            end()

    cancel = done


def export(sequence: MockSequence, layers: tuple[int, int], tokens: tuple[int, int]) -> KvPiece:
    """KV of layers and tokens `[a, b)`; K and V are `[tokens, 1, 1]` float32."""
    if not 0 <= tokens[0] < tokens[1] <= sequence.done:
        raise EngineError(f"{sequence.request.id}: {sequence.done} tokens have run, not {tokens}")
    sections = []
    for layer in range(*layers):
        k = _content(sequence, layer, tokens)
        sections.append(
            KvSection(
                layer=layer,
                kind="full",
                dtype="float32",
                shape=(len(k), 1, 1),
                token_start=tokens[0],
                k=k.data,
                v=(-k).data,
            )
        )
    return KvPiece(request=sequence.request.id, tokens=tokens[1], sections=tuple(sections))


def restore(sequence: MockSequence, layers: tuple[int, int], pieces: Sequence[KvPiece]) -> None:
    """Take KV of the next tokens; raises EngineError for KV that is missing or not this sequence's."""
    if sequence.done != sequence.imported:
        raise EngineError(f"{sequence.request.id} has run here already: KV is imported first")
    reach = dict.fromkeys(range(*layers), sequence.imported)
    sections = sorted((s for piece in pieces for s in piece.sections), key=lambda s: s.token_start)
    for section in sections:
        if section.layer not in reach:
            continue
        start, count = section.token_start, section.shape[0]
        if section.kind != "full" or start != reach[section.layer]:
            raise EngineError(f"{sequence.request.id}: layer {section.layer} lacks KV before token {start}")
        k = np.frombuffer(section.k, dtype=np.float32)
        if not np.array_equal(k, _content(sequence, section.layer, (start, start + count))):
            raise EngineError(f"{sequence.request.id}: KV of layer {section.layer} is not this sequence's")
        reach[section.layer] = start + count
    if len(set(reach.values())) != 1:
        raise EngineError(f"{sequence.request.id}: layers hold different numbers of tokens: {reach}")
    sequence.done = sequence.imported = next(iter(reach.values()))


def _content(sequence: MockSequence, layer: int, tokens: tuple[int, int]) -> Floats:
    rows = embed(sequence.request.id, tokens[0], sequence.known[tokens[0] : tokens[1]], 1)
    return np.ascontiguousarray(rows[:, 0] + np.float32(layer))
