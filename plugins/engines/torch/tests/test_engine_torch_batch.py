"""The geometry of a step against a plain statement of who attends to whom."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from coral_engine_torch import batch
from coral_engine_torch.attention import attend
from coral_engine_torch.batch import Span, build, group_decodes
from coral_engine_torch.kv import KvCache
from torch import Tensor

from coral.errors import NoRoom

SIZE, HEADS, KV_HEADS, WIDTH = 4, 6, 2, 16
CPU = torch.device("cpu")


def plain(q: Tensor, k: Tensor, v: Tensor, start: int, window: int, sinks: Tensor | None) -> Tensor:
    """Attention of rows at positions start.. over all keys of one sequence, head by head."""
    out = torch.empty_like(q)
    for i in range(len(q)):
        low = max(0, start + i - window + 1) if window else 0
        for h in range(HEADS):
            g = h // (HEADS // KV_HEADS)
            scores = k[low : start + i + 1, g] @ q[i, h] * WIDTH**-0.5
            if sinks is not None:
                scores = torch.cat([scores, sinks[h : h + 1]])
            weights = torch.softmax(scores, 0)[: start + i + 1 - low]
            out[i, h] = weights @ v[low : start + i + 1, g]
    return out


@pytest.mark.parametrize("window", [0, 3, 7])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("cuts", [(1 << 20, 1 << 14), (24, 40)], ids=["whole", "pieces"])
def test_ragged_attention_equals_the_plain_one(
    window: int, sinks: bool, cuts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PIECE_SCORES", cuts[0])
    monkeypatch.setattr(batch, "GROUP_TOKENS", cuts[1])
    torch.manual_seed(3)
    lengths = [(0, 9), (21, 1), (5, 6), (0, 1), (30, 1), (3, 1), (16, 8)]  # (start, n)
    cache = KvCache(1, 64, SIZE, KV_HEADS, WIDTH, torch.float32, CPU)
    tables = [cache.take(start + n) for start, n in lengths]
    sequences = [torch.randn(2, start + n, KV_HEADS, WIDTH) for start, n in lengths]
    for table, (start, _), kv in zip(tables, lengths, sequences, strict=True):
        for i in range(start):  # what earlier steps left there
            cache.keys(0)[table[i // SIZE], i % SIZE] = kv[0, i]
            cache.values(0)[table[i // SIZE], i % SIZE] = kv[1, i]
    spans, row = [], 0
    for table, (start, n) in zip(tables, lengths, strict=True):
        spans.append(Span(row, start, n, table))
        row += n
    q = torch.randn(row, HEADS, WIDTH)
    k, v = (
        torch.cat([kv[i, start:] for kv, (start, _) in zip(sequences, lengths, strict=True)]) for i in (0, 1)
    )
    extra = torch.randn(HEADS) if sinks else None
    made = build(spans, SIZE, [0, window], CPU)
    found = attend(q, k, v, cache.keys(0), cache.values(0), made, window, extra)
    for span, kv in zip(spans, sequences, strict=True):
        rows = slice(span.row, span.row + span.n)
        expected = plain(q[rows], kv[0], kv[1], span.start, window, extra)
        torch.testing.assert_close(found[rows], expected, rtol=1e-4, atol=1e-5)


def test_groups_hold_each_row_once_and_stay_bounded() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        starts = generator.integers(0, 20_000, size=generator.integers(1, 60)).tolist()
        spans = [Span(i, start, 1, range(10_000)) for i, start in enumerate(starts)]
        groups = group_decodes(spans, 16, 0)
        assert sorted(span.row for group in groups for span in group) == list(range(len(starts)))
        for group in groups:
            widths = [span.start // 16 + 1 for span in group]
            assert len(group) == 1 or len(group) * max(widths) * 16 <= batch.GROUP_TOKENS
            assert max(widths) <= max(2 * min(widths), 4)


def test_blocks_come_back_when_their_last_holder_lets_go() -> None:
    cache = KvCache(2, 4, SIZE, KV_HEADS, WIDTH, torch.float32, CPU)
    blocks = cache.take(9)
    assert cache.pool.free == 1
    with pytest.raises(NoRoom, match="2 KV blocks are needed, 1 of 4 are free"):
        cache.take(5)
    cache.pool.hold(blocks)
    cache.pool.drop(blocks)
    assert cache.pool.free == 1
    cache.pool.drop(blocks)
    assert cache.pool.free == 4


def test_a_block_is_clean_for_its_next_request() -> None:
    cache = KvCache(2, 2, SIZE, KV_HEADS, WIDTH, torch.float32, CPU)
    (block, _) = cache.take(2 * SIZE)
    for layer in (0, 1):
        cache.keys(layer)[block] = float("nan")
        cache.values(layer)[block] = float("nan")
    cache.pool.drop([0, 1])
    again = cache.take(2 * SIZE)
    for layer in (0, 1):
        assert not cache.keys(layer)[again].isnan().any()
        assert not cache.values(layer)[again].isnan().any()
