from __future__ import annotations

import pytest

from coral.core.serve.planner.deadline import PlannerDeadline


def up() -> PlannerDeadline:
    deadline = PlannerDeadline(answer_s=10.0, start_s=60.0, silence_s=20.0, backoff_s=1.0, backoff_most_s=4.0)
    assert deadline.action(0.0) == "start"
    deadline.spawned(0.0)
    assert deadline.action(59.0) == "wait"
    deadline.hello(5.0)
    return deadline


def test_an_answer_in_time() -> None:
    deadline = up()
    deadline.asked(1, 6.0)
    assert deadline.action(15.9) == "wait"
    assert deadline.answered(1, 15.9)
    assert deadline.action(30.0) == "wait"


def test_an_ask_that_overruns_is_killed_and_its_late_answer_ignored() -> None:
    deadline = up()
    deadline.asked(1, 6.0)
    deadline.beat(15.0)
    assert deadline.action(16.0) == "kill"
    assert deadline.exited(16.0) == 1
    assert not deadline.answered(1, 16.1)
    assert [deadline.action(t) for t in (16.5, 17.0)] == ["wait", "start"]
    assert deadline.restarts == 1


def test_a_start_that_takes_too_long() -> None:
    deadline = PlannerDeadline(answer_s=10.0, start_s=60.0)
    deadline.spawned(0.0)
    assert deadline.action(60.0) == "kill"


def test_silence_while_idle() -> None:
    deadline = up()
    deadline.beat(10.0)
    assert [deadline.action(t) for t in (30.0, 30.1)] == ["wait", "kill"]


def test_restarts_back_off_and_an_answer_forgives() -> None:
    deadline = up()
    waits = []
    now = 10.0
    for _ in range(4):
        assert deadline.exited(now) is None
        began = now
        while deadline.action(now) != "start":
            now += 0.5
        waits.append(now - began)
        deadline.spawned(now)
    assert waits == [1.0, 2.0, 4.0, 4.0]
    deadline.hello(now)
    deadline.asked(9, now)
    assert deadline.answered(9, now)
    deadline.exited(now)
    assert deadline.action(now + 1.0) == "start"


def test_only_an_idle_planner_takes_an_ask() -> None:
    deadline = up()
    deadline.asked(1, 6.0)
    with pytest.raises(ValueError, match="takes no ask"):
        deadline.asked(2, 6.0)
    assert not deadline.answered(2, 7.0)
