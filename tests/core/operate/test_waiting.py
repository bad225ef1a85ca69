"""Who waits for room, who may go ahead, and for how long: the queue, and an instance over it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from coral.core.operate.admission import WaitingQueue
from coral.core.operate.sequence import LiveSequence
from tests.core.operate.instance_model import SHAPES, ModelInstance, request_of, run_to_the_end


def need(sequence: LiveSequence) -> int:
    return sequence.known


def sequences(*prompts: int, priority: float = 1.0) -> list[LiveSequence]:
    return [
        LiveSequence.of(request_of(f"r{number}", prompt, 4, priority=priority), number)
        for number, prompt in enumerate(prompts)
    ]


def first_that_fits(queue: WaitingQueue, room: int) -> LiveSequence | None:
    """Admits the first in turn that needs no more than `room`."""
    for sequence in queue.admissible(need):
        if need(sequence) <= room:
            queue.admit(sequence, need(sequence))
            return sequence
    return None


def test_short_ones_go_ahead_of_a_long_one_that_waits_until_they_took_as_much_as_it_needs() -> None:
    queue = WaitingQueue(10)
    waiting = sequences(20, 8, 8, 8)
    for sequence in waiting:
        queue.push(sequence)
    assert first_that_fits(queue, 19) is waiting[1]
    assert first_that_fits(queue, 19) is waiting[2]
    assert first_that_fits(queue, 19) is None  # 16 of 20 are used up
    assert first_that_fits(queue, 20) is waiting[0]
    assert first_that_fits(queue, 19) is waiting[3]


def test_one_of_less_priority_never_goes_ahead() -> None:
    queue = WaitingQueue(10)
    (high,), (_, low) = sequences(20, priority=2.0), sequences(1, 4)
    queue.push(low)
    queue.push(high)
    assert list(queue) == [high, low]
    assert first_that_fits(queue, 19) is None
    assert first_that_fits(queue, 20) is high


def test_nobody_goes_ahead_of_one_that_was_preempted() -> None:
    queue = WaitingQueue(1)
    long, short = sequences(20, 4)
    queue.push(short)
    queue.push(long, preempted=True)
    assert len(queue) == 2
    assert first_that_fits(queue, 19) is None


@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    priorities=st.lists(st.sampled_from([1.0, 2.0]), min_size=40, max_size=40),
    rooms=st.lists(st.integers(0, 30), max_size=60),
)
def test_nobody_is_overtaken_by_more_than_it_needs_itself(
    prompts: list[int], priorities: list[float], rooms: list[int]
) -> None:
    queue = WaitingQueue(100)
    waiting = [
        LiveSequence.of(request_of(str(number), prompt, 4, priority=priorities[number]), number)
        for number, prompt in enumerate(prompts)
    ]
    for sequence in waiting:
        queue.push(sequence)
    passed: Counter[int] = Counter()
    for room in [*rooms, *[30] * len(waiting)]:
        before = list(queue)
        went = first_that_fits(queue, room)
        assert went is not None or not before or need(before[0]) > room
        for sequence in before[: before.index(went)] if went else []:
            assert went is not None
            assert sequence.rank[0] == went.rank[0]
            passed[sequence.arrival] += need(went)
            assert passed[sequence.arrival] <= need(sequence)
    assert len(queue) == 0  # where there is room for anybody, all go


def test_a_short_request_does_not_stand_behind_a_long_one_that_waits_for_room() -> None:
    one = ModelInstance(SHAPES[1], {"a": 10, "b": 10}, expected=4)
    one.submit(request_of("running", 16, 4))
    one.submit(request_of("long", 30, 4))
    one.submit(request_of("short", 4, 4))
    assert one.state.running == 2
    assert one.state.waiting == 1
    run_to_the_end(one)
    assert set(one.ended.values()) == {"finished"}


def test_short_requests_without_end_do_not_starve_a_long_one() -> None:
    one = ModelInstance(SHAPES[1], {"a": 10, "b": 10}, expected=4)
    one.submit(request_of("s0", 8, 4))
    one.submit(request_of("s1", 8, 4))
    one.submit(request_of("long", 30, 4))
    number = 2
    while "long" not in one.ended:
        if one.state.waiting < 3:
            one.submit(request_of(f"s{number}", 8, 4))
            number += 1
        one.move(*one.moves()[0])
    ahead = [name for name in one.ended if name != "long"]
    assert 3 <= len(ahead) <= 5  # two that ran, and at most 34 tokens' worth of others


def test_a_full_node_preempts_the_one_of_least_priority() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=1)
    one.submit(request_of("low", 6, 20, priority=1.0))
    one.submit(request_of("high", 6, 20, priority=2.0))
    run_to_the_end(one)
    assert one.state.preemptions > 0
    assert list(one.ended) == ["high", "low"]
    assert set(one.ended.values()) == {"finished"}
