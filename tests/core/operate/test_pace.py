from __future__ import annotations

import random

import pytest

from coral.core.operate.batching import FirstStageBatching
from coral.core.operate.pace import LEAST_CHUNK, ChunkPace


def run(
    pace: ChunkPace, batching: FirstStageBatching, seconds: random.Random | None = None
) -> tuple[int, float]:
    """A step of a device that takes 20 ms, 0.2 ms a row, 1 ms a prompt token: (prompt tokens, seconds)."""
    pieces = batching.next(pace.limit())
    rows = sum(piece.decode for piece in pieces)
    prompt = sum(len(piece.tokens) for piece in pieces) - rows
    took = 0.020 + 0.0002 * rows + 0.001 * prompt
    if seconds is not None:
        took *= seconds.uniform(0.9, 1.1)
    pace.ran(prompt, rows, took)
    for piece in pieces:
        if piece.decode:
            batching.feed(piece.request, 1)
    return prompt, took


def decoding(count: int) -> FirstStageBatching:
    batching = FirstStageBatching(step_tokens=512, step_requests=64)
    for number in range(count):
        batching.open(f"d{number}", [1], 10_000)
    batching.next()
    for number in range(count):
        batching.feed(f"d{number}", 1)
    return batching


@pytest.mark.parametrize("noise", [False, True])
def test_beside_sequences_that_decode_steps_come_to_keep_to_their_target(noise: bool) -> None:
    pace, batching = ChunkPace(0.100), decoding(8)
    noisy = random.Random(3) if noise else None
    for _ in range(5):
        run(pace, batching, noisy)
    for number in range(20):
        batching.open(f"p{number}", [1] * 2000, 10_000)
    taken = [run(pace, batching, noisy) for _ in range(60)]
    assert taken[0][0] == 504  # nothing is known of prompts yet
    settled = taken[10:]
    assert max(seconds for _, seconds in settled) < 0.115
    assert sum(tokens for tokens, _ in settled) > 50 * 60  # of 78 a step that would fit


def test_where_nobody_decodes_a_prompt_takes_the_whole_step() -> None:
    pace, batching = ChunkPace(0.100), FirstStageBatching(step_tokens=512, step_requests=64)
    for number in range(3):
        batching.open(f"p{number}", [1] * 4096, 10_000)
    assert [run(pace, batching)[0] for _ in range(6)] == [512] * 6


def test_prompts_get_on_where_decode_rows_alone_take_longer_than_the_target() -> None:
    pace, batching = ChunkPace(0.010), decoding(8)
    for _ in range(5):
        run(pace, batching)
    batching.open("p", [1] * 1000, 10_000)
    assert [run(pace, batching)[0] for _ in range(5)][1:] == [LEAST_CHUNK] * 4


def test_without_a_target_there_is_no_limit() -> None:
    pace, batching = ChunkPace(0.0), decoding(8)
    batching.open("p", [1] * 2000, 10_000)
    assert [run(pace, batching)[0] for _ in range(3)] == [504] * 3
