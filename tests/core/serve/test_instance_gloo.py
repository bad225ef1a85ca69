"""Instances whose rows go from worker to worker over gloo."""

from __future__ import annotations

import os
import signal
import time

import pytest

from coral.testing.instance import Answer, InstanceUnderTest, stages
from coral.types.request import GenerateRequest, Sampling

pytest.importorskip("torch", reason="gloo comes with torch")

NOTICED_S = 10.0


def one_two_one(channel: str) -> InstanceUnderTest:
    placement = stages(
        cuts=(3, 20, 30),
        nodes=(1, 2, 1),
        engine="mock",
        options={"kv_blocks": 256, "cost": {"overhead_s": 0.002}},
        weights={"s1n0": 2.0, "s1n1": 1.0},
    )
    return InstanceUnderTest(placement, channel=channel)


def requests(count: int, output: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            id=f"r{number}",
            model="model",
            prompt_ids=tuple(range(number, number + 5 + number * 20)),
            sampling=Sampling(temperature=0.0, max_tokens=output),
        )
        for number in range(count)
    ]


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.tokens for name, answer in answers.items()}


def test_the_same_tokens_as_over_zeromq() -> None:
    with one_two_one("zmq") as instance:
        instance.wait_ready()
        expected = tokens(instance.generate(requests(12, 24)))
    with one_two_one("gloo") as instance:
        instance.wait_ready()
        answers = instance.generate(requests(12, 24), late=4)
        assert all(answer.finish == "length" for answer in answers.values())
        assert tokens(answers) == expected
        instance.settled()


def test_a_killed_worker_is_noticed_and_the_survivors_leave() -> None:
    """One rank is gone: the others, which wait for its bytes or send it theirs, give up and end."""
    with one_two_one("gloo") as instance:
        instance.wait_ready()
        for request in requests(6, 1000):
            instance.submit(request)
        instance.wait(lambda: all(len(a.tokens) > 3 for a in instance.answers.values()), 60, "generating")
        os.kill(instance.workers["s1n0"].pid, signal.SIGKILL)
        killed = time.monotonic()
        instance.wait(lambda: instance.failed is not None, 60, "failed")
        assert time.monotonic() - killed < NOTICED_S
        instance.wait(lambda: all(a.error for a in instance.answers.values()), 20, "rid of its requests")
        for process in instance.processes:
            process.wait(NOTICED_S)


def test_a_worker_that_stops_before_all_are_connected_is_named() -> None:
    """The others' communicators wait for it; the instance fails in time, and nothing is left."""
    placement = stages(cuts=(3, 30), nodes=(1, 1), engine="mock", options={"kv_blocks": 64})
    with InstanceUnderTest(placement, channel="gloo", start_timeout_s=8, silence_s=30) as instance:
        instance.wait(lambda: "s1n0" in instance.workers, 60, "started")
        os.kill(instance.workers["s1n0"].pid, signal.SIGSTOP)
        try:
            instance.wait(lambda: instance.failed is not None, 60, "failed")
            assert instance.failed is not None
            assert "s1n0" in f"{instance.failed.node} {instance.failed.reason}"
        finally:
            os.kill(instance.workers["s1n0"].pid, signal.SIGCONT)
        for process in instance.processes:
            process.wait(60)  # the one that was stopped first looks for its scheduler, for ten seconds
