"""What several senders push comes together: in whatever order and cut, nothing is missing or doubled."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coral.core.serve.net.messages.handover import Kv, KvPart
from coral.core.serve.worker.kv.intake import Intake
from coral.errors import EngineError
from coral.types.stage import KvPiece

HEADS, WIDTH = 2, 3


def content(layer: int, start: int, end: int, sign: int) -> bytes:
    tokens = np.arange(start, end, dtype=np.float32)[:, None, None] * 100 + layer
    return (sign * np.broadcast_to(tokens, (end - start, HEADS, WIDTH))).astype(np.float32).tobytes()


def message(
    layers: range, start: int, end: int, known: int, windows: dict[int, int]
) -> tuple[Kv, list[bytes]]:
    """As an engine exports it: of a windowed layer what later tokens may attend to."""
    parts, frames = [], []
    for layer in layers:
        window = windows.get(layer, 0)
        low = max(start, end - window + 1) if window else start
        kind = "window" if window else "full"
        shape = (end - low, HEADS, WIDTH)
        parts.append(KvPart(layer=layer, kind=kind, dtype="float32", shape=shape, token_start=low))  # type: ignore[arg-type]
        frames += [content(layer, low, end, 1), content(layer, low, end, -1)]
    header = Kv(
        instance="d",
        generation=1,
        request="r",
        attempt=0,
        start=start,
        end=end,
        known=known,
        parts=tuple(parts),
    )
    return header, frames


class Importer:
    """Takes pieces as an engine must, and knows what it has."""

    def __init__(self, layers: range, windows: dict[int, int]) -> None:
        self.layers, self.windows = layers, windows
        self.imported = 0
        self.have = {layer: set[int]() for layer in layers}

    def take(self, piece: KvPiece) -> None:
        for section in piece.sections:
            start, tokens = section.token_start, section.shape[0]
            assert self.imported <= start
            assert start + tokens <= piece.tokens
            assert bytes(section.k) == content(section.layer, start, start + tokens, 1)
            assert bytes(section.v) == content(section.layer, start, start + tokens, -1)
            added = set(range(start, start + tokens))
            assert not added & self.have[section.layer], "doubled"
            self.have[section.layer] |= added
        for layer in self.layers:
            window = self.windows.get(layer, 0)
            low = max(0, piece.tokens - window + 1) if window else 0
            assert set(range(low, piece.tokens)) <= self.have[layer], "missing"
        self.imported = piece.tokens


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_cut_and_order_of_several_senders_comes_together(data: st.DataObject) -> None:
    known = data.draw(st.integers(1, 40))
    stage = range(data.draw(st.integers(0, 2)), data.draw(st.integers(3, 6)))
    edges = [0, *sorted(data.draw(st.sets(st.integers(1, 7), max_size=3))), 8]
    windows = {
        layer: data.draw(st.integers(1, 12)) for layer in range(8) if data.draw(st.integers(0, 2)) == 0
    }
    senders: list[list[tuple[Kv, list[bytes]]]] = []
    for low, high in pairwise(edges):
        if range(max(low, stage.start), min(high, stage.stop)):
            sent = []
            for _ in range(data.draw(st.integers(0, 1)) + 1):  # the last time to the end
                bounds = [0, *sorted(data.draw(st.sets(st.integers(1, known), max_size=5)) | {known})]
                cut = pairwise(bounds)
                sent.append([message(range(low, high), a, b, known, windows) for a, b in cut])
            begun = sent[0][: data.draw(st.integers(0, len(sent[0])))] if len(sent) > 1 else []
            senders.append([*begun, *sent[-1]])
    intake, importer = Intake("r", (stage.start, stage.stop), known), Importer(stage, windows)
    while senders:
        sender = senders[data.draw(st.integers(0, len(senders) - 1))]
        intake.add(*sender.pop(0))
        senders = [one for one in senders if one]
        piece = intake.take()
        if piece is not None:
            importer.take(piece)
            assert importer.imported == intake.taken
    assert intake.complete
    assert importer.imported == known


def test_full_layers_are_taken_as_far_as_all_senders_are() -> None:
    intake = Intake("r", (0, 4), 30)
    intake.add(*message(range(0, 2), 0, 20, 30, {}))
    assert intake.take() is None
    intake.add(*message(range(2, 5), 0, 12, 30, {}))
    piece = intake.take()
    assert piece is not None
    assert piece.tokens == 12
    assert {section.layer for section in piece.sections} == {0, 1, 2, 3}
    assert intake.take() is None


def test_a_gap_is_refused() -> None:
    intake = Intake("r", (0, 2), 30)
    intake.add(*message(range(0, 2), 0, 10, 30, {}))
    with pytest.raises(EngineError, match=r"tokens \[10, 12\) are missing"):
        intake.add(*message(range(0, 2), 12, 20, 30, {}))


def test_kv_of_another_number_of_tokens_is_refused() -> None:
    with pytest.raises(EngineError, match="31 tokens has come, 30 are known"):
        Intake("r", (0, 2), 30).add(*message(range(0, 2), 0, 10, 31, {}))


def test_heads_that_come_in_parts_stay_parts() -> None:
    header, frames = message(range(0, 1), 0, 10, 10, {})
    part = header.parts[0]
    two = tuple(
        KvPart(layer=0, kind="full", dtype="float32", shape=(10, 1, WIDTH), token_start=0, head_start=head)
        for head in (0, 1)
    )
    assert part.shape == (10, 2, WIDTH)
    halved = [frame[: len(frame) // 2] for frame in frames]
    intake = Intake("r", (0, 1), 10)
    intake.add(msgspec.structs.replace(header, parts=two), [*halved, *halved])
    piece = intake.take()
    assert piece is not None
    assert [(s.head_start, s.shape) for s in piece.sections] == [(0, (10, 1, 3)), (1, (10, 1, 3))]
