from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coral.core.operate.arrivals import ArrivalBatching, Arrived
from coral.core.operate.batching import FirstStageBatching, Piece


def sizes(pieces: Sequence[Piece]) -> list[tuple[str, int, int]]:
    return [(piece.request, piece.start, len(piece.tokens)) for piece in pieces]


def test_decode_rows_go_first_and_prompts_take_the_rest() -> None:
    batching = FirstStageBatching(step_tokens=8, step_requests=4)
    batching.open("a", [1], 100)
    batching.next()
    batching.feed("a", 7)
    batching.open("b", list(range(10)), 100)
    assert sizes(batching.next()) == [("a", 1, 1), ("b", 0, 7)]


def test_a_decode_leg_starts_when_it_is_fed_after_what_it_need_not_run() -> None:
    batching = FirstStageBatching(step_tokens=8, step_requests=4)
    batching.open("a", [1, 2, 3], 100, leg="decode")
    assert not batching.ready
    batching.feed("a", 7)
    assert batching.next() == [Piece("a", 3, (7,), decode=True)]


def test_what_waits_for_its_kv_or_hands_it_over_makes_no_prompt_wait() -> None:
    """Only beside sequences that decode here are chunks of prompts kept small."""
    batching = FirstStageBatching(step_tokens=64, step_requests=8)
    batching.open("handing", [1, 2, 3], 4, leg="prefill")
    batching.open("awaiting", [1, 2, 3], 100, leg="decode")
    batching.next()
    batching.open("prompt", list(range(40)), 100)
    assert sizes(batching.next(prompt_tokens=16)) == [("prompt", 0, 40)]
    batching.feed("awaiting", 7)
    batching.open("next", list(range(40)), 100)
    assert sizes(batching.next(prompt_tokens=16)) == [("awaiting", 3, 1), ("next", 0, 16)]


def test_a_long_prompt_delays_a_short_one_by_at_most_one_chunk() -> None:
    batching = FirstStageBatching(step_tokens=8, step_requests=4)
    batching.open("long", list(range(100)), 200)
    assert sizes(batching.next()) == [("long", 0, 8)]
    batching.open("short", [1, 2, 3], 10)
    assert ("short", 0, 3) in sizes(batching.next()) + sizes(batching.next())


def test_decode_rows_never_keep_prompts_out() -> None:
    batching = FirstStageBatching(step_tokens=8, step_requests=2)
    for name in "abc":
        batching.open(name, [1], 100)
    while batching.ready:
        batching.next()
    for name in "abc":
        batching.feed(name, 1)
    batching.open("prompt", [1, 2, 3], 100)
    assert sizes(batching.next()) == [("a", 1, 1), ("prompt", 0, 3)]
    assert sizes(batching.next()) == [("b", 1, 1), ("c", 1, 1)]


def test_a_sequence_waits_at_the_edge_of_its_reservation() -> None:
    batching = FirstStageBatching(step_tokens=8, step_requests=2)
    batching.open("a", [1, 2, 3, 4], 3)
    assert sizes(batching.next()) == [("a", 0, 3)]
    assert not batching.ready
    batching.extend("a", 6)
    assert sizes(batching.next()) == [("a", 3, 1)]


def test_a_closed_sequence_is_gone() -> None:
    batching = FirstStageBatching(step_tokens=8, step_requests=2)
    batching.open("a", [1, 2], 3)
    batching.close("a")
    batching.close("a")
    assert not batching.ready
    assert batching.next() == []


@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    step_tokens=st.integers(1, 16),
    step_requests=st.integers(1, 6),
)
def test_every_token_runs_once_in_order_and_limits_hold(
    prompts: list[int], step_tokens: int, step_requests: int
) -> None:
    batching = FirstStageBatching(step_tokens=step_tokens, step_requests=step_requests)
    for index, length in enumerate(prompts):
        batching.open(str(index), list(range(length)), 1000)
    ran: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    while batching.ready:
        pieces = batching.next()
        assert 0 < sum(len(piece.tokens) for piece in pieces) <= step_tokens
        assert len(pieces) <= step_requests
        assert len({piece.request for piece in pieces}) == len(pieces)
        for piece in pieces:
            assert piece.start == len(ran[piece.request])
            ran[piece.request] += piece.tokens
    assert ran == {str(index): list(range(length)) for index, length in enumerate(prompts)}


def arrived(request: str, start: int, n: int, attempt: int = 0) -> Arrived[str]:
    return Arrived(request, attempt, start, n, f"{request}@{start}")


def names(chunks: Sequence[Arrived[str]]) -> list[str]:
    return [chunk.payload for chunk in chunks]


def test_arrivals_of_several_senders_share_a_step_and_chunks_of_one_stay_in_order() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=10, step_requests=3)
    for name in ("a", "b"):
        batching.open(name, 0, 100)
    for chunk in (arrived("a", 0, 4), arrived("a", 4, 4), arrived("b", 0, 2)):
        assert batching.arrive(chunk)
    assert names(batching.next()) == ["a@0", "b@0"]
    assert names(batching.next()) == ["a@4"]
    assert not batching.ready


def test_a_stale_attempt_is_dropped_and_a_closed_sequence_returns_what_was_left() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=10, step_requests=3)
    batching.open("a", 1, 6)
    assert not batching.arrive(arrived("a", 0, 4, attempt=0))
    assert not batching.arrive(arrived("x", 0, 4))
    batching.arrive(arrived("a", 0, 4, attempt=1))
    batching.arrive(arrived("a", 4, 4, attempt=1))
    assert sorted(names(batching.close("a"))) == ["a@0", "a@4"]
    assert not batching.ready


def test_rows_beyond_the_reservation_wait_for_the_extension() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=10, step_requests=3)
    batching.open("a", 0, 4)
    batching.arrive(arrived("a", 0, 4))
    batching.arrive(arrived("a", 4, 1))
    batching.arrive(arrived("a", 5, 1))
    assert names(batching.next()) == ["a@0"]
    assert not batching.ready
    batching.extend("a", 5)
    assert names(batching.next()) == ["a@4"]
    assert not batching.ready
    batching.extend("a", 8)
    assert names(batching.next()) == ["a@5"]


def test_a_chunk_larger_than_a_step_runs_alone() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=4, step_requests=3)
    for name in ("a", "b"):
        batching.open(name, 0, 100)
        batching.arrive(arrived(name, 0, 6))
    assert names(batching.next()) == ["a@0"]
    assert names(batching.next()) == ["b@0"]


def test_a_long_prompt_at_a_later_stage_delays_a_short_one_by_at_most_one_chunk() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=8, step_requests=4)
    for name in ("long", "short"):
        batching.open(name, 0, 200)
    for start in range(0, 64, 8):
        batching.arrive(arrived("long", start, 8))
    assert names(batching.next()) == ["long@0"]
    batching.arrive(arrived("short", 0, 3))
    assert names(batching.next()) == ["long@8"]
    assert names(batching.next()) == ["short@0"]


def test_decode_rows_pass_chunks_and_a_chunk_that_did_not_fit_is_next() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=8, step_requests=4)
    for name in "abc":
        batching.open(name, 0, 200)
    batching.open("prompt", 0, 200)
    for start in range(0, 32, 8):
        batching.arrive(arrived("prompt", start, 8))
    for position in range(3):
        for name in "abc":
            batching.arrive(arrived(name, position, 1))
    assert names(batching.next()) == ["a@0", "b@0", "c@0"]
    assert names(batching.next()) == ["prompt@0"]
    assert names(batching.next()) == ["a@1", "b@1", "c@1"]
    assert names(batching.next()) == ["prompt@8"]


def test_short_chunks_that_fit_beside_decode_rows_do_not_keep_a_long_one_out() -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=8, step_requests=4)
    for name in ("a", "long", *map(str, range(9))):
        batching.open(name, 0, 200)
    batching.arrive(arrived("long", 0, 8))
    steps = []
    for number in range(6):
        batching.arrive(arrived("a", number, 1))
        batching.arrive(arrived(str(number), 0, 2))
        steps.append(names(batching.next()))
    assert steps[0] == ["a@0", "0@0"]
    assert steps[1] == ["long@0"]
    assert steps[2] == ["a@1", "1@0", "2@0"]


@given(
    sequences=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=1, max_size=7),
    step_tokens=st.integers(1, 10),
    step_requests=st.integers(1, 5),
)
def test_arrivals_run_once_in_order_within_limits_and_nobody_waits_for_more_than_a_turn_of_each(
    sequences: list[list[int]], step_tokens: int, step_requests: int
) -> None:
    batching: ArrivalBatching[str] = ArrivalBatching(step_tokens=step_tokens, step_requests=step_requests)
    waiting: dict[str, list[tuple[int, int]]] = {}
    for number, lengths in enumerate(sequences):
        name = str(number)
        batching.open(name, 0, 1000)
        waiting[name] = []
        for n in lengths:
            start = waiting[name][-1][0] + waiting[name][-1][1] if waiting[name] else 0
            waiting[name].append((start, n))
            batching.arrive(arrived(name, start, n))
    idle = dict.fromkeys(waiting, 0)
    while batching.ready:
        taken = batching.next()
        tokens = sum(chunk.n for chunk in taken)
        assert taken
        assert tokens <= step_tokens or len(taken) == 1
        assert len(taken) <= step_requests
        assert len({chunk.request for chunk in taken}) == len(taken)
        for chunk in taken:
            assert waiting[chunk.request].pop(0) == (chunk.start, chunk.n)
        ran = {chunk.request for chunk in taken}
        idle = {name: 0 if name in ran else idle[name] + 1 for name, left in waiting.items() if left}
        assert max(idle.values(), default=0) <= 2 * len(sequences)
    assert not any(waiting.values())


def pipeline_makespan(stages: int, sequences: int, tokens: int, split: bool) -> float:
    """Seconds until every sequence has its tokens, where a step of b rows takes 1 + b/10 s at every stage."""
    first = FirstStageBatching(step_tokens=64, step_requests=64, stages=stages if split else 1)
    later = [ArrivalBatching[str](step_tokens=64, step_requests=64) for _ in range(stages - 1)]
    got = dict.fromkeys(map(str, range(sequences)), 0)
    for name in got:
        first.open(name, [1], 1000)
        for stage in later:
            stage.open(name, 0, 1000)
    clock, running = 0.0, [(float("inf"), list[tuple[str, int]]()) for _ in range(stages)]
    while min(got.values()) < tokens:
        for number in range(stages):
            if running[number][0] == float("inf"):
                if number == 0:
                    rows = [(piece.request, piece.start) for piece in first.next()]
                else:
                    rows = [(chunk.request, chunk.start) for chunk in later[number - 1].next()]
                if rows:
                    running[number] = (clock + 1 + len(rows) / 10, rows)
        clock = min(end for end, _ in running)
        for number in range(stages):
            end, rows = running[number]
            if end == clock:
                running[number] = (float("inf"), [])
                for name, start in rows:
                    if number < stages - 1:
                        later[number].arrive(arrived(name, start, 1))
                    else:
                        got[name] += 1
                        first.feed(name, 1)
    return clock


def test_decode_rows_keep_every_stage_of_a_pipeline_busy() -> None:
    for stages in (2, 3, 4):
        together = pipeline_makespan(stages, 24, 50, split=False)
        apart = pipeline_makespan(stages, 24, 50, split=True)
        assert together == pytest.approx(50 * stages * (1 + 24 / 10))
        assert apart < 1.1 * 50 * stages * (1 + 24 / stages / 10)
