"""The scheduler's state machine against a model of nodes, in random orders of everything that can happen."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coral.core.operate.command import Lose, Open, Refuse, Release
from coral.types.request import GenerateRequest, Sampling
from tests.core.operate.instance_model import SHAPES, ModelInstance, request_of, run_to_the_end, token_at


# Shrinking may take Hypothesis five minutes, as long as a test may run here: a failure must be told instead.
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.data())
def test_blocks_are_conserved_tokens_complete_and_every_request_ends(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    kv = {node: data.draw(st.integers(4, 14), label=f"kv {node}") for stage in shape for node, _ in stage}
    one = ModelInstance(shape, kv, expected=data.draw(st.integers(1, 12)))
    count = 0
    for _ in range(data.draw(st.integers(5, 120), label="steps")):
        action = data.draw(st.integers(0, 19))
        moves = one.moves()
        if action < 3 and count < 12:
            output = data.draw(st.integers(1, 24))
            done = data.draw(st.integers(0, 3))
            name = f"r{count}"
            prompt, priority = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([1.0, 2.0]))
            one.submit(request_of(name, prompt, output, min(done, output - 1), priority))
            count += 1
        elif action == 3 and count:
            one.abort(f"r{data.draw(st.integers(0, count - 1))}")
        elif action == 4 and count:
            name = f"r{data.draw(st.integers(0, count - 1))}"
            node = data.draw(st.sampled_from(sorted(kv)))
            held = one.nodes[node].open.get(name)
            if held is not None:
                one.carry_out(one.state.sequence_failed(node, name, held.attempt, "told to"))
        elif moves:
            one.move(*data.draw(st.sampled_from(moves)))
    if data.draw(st.booleans(), label="a node fails"):
        one.carry_out(one.state.node_failed("killed"))
        assert one.state.idle
        assert one.state.ledger.idle
        assert set(one.ended) == set(one.requests)
        return
    one.carry_out(one.state.drain())
    run_to_the_end(one)
    assert one.state.idle, f"stuck: {one.state.running} running, {one.state.waiting} waiting"
    assert one.state.ledger.idle
    assert one.drained == 1
    assert set(one.ended) == set(one.requests)
    for name, how in one.ended.items():
        if how == "finished":
            total = one.requests[name].sampling.max_tokens
            assert one.got[name] == [token_at(name, position) for position in range(total)]
    assert not any(model.open for model in one.nodes.values())


def test_a_full_node_preempts_the_youngest_and_all_finish() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=1)
    for number in range(3):
        one.submit(request_of(f"r{number}", 6, 20))
    run_to_the_end(one)
    assert one.state.preemptions > 0
    assert set(one.ended.values()) == {"finished"}
    assert one.state.ledger.idle


def test_a_loss_may_follow_the_last_token_that_the_scheduler_has_not_heard_of() -> None:
    one = ModelInstance(SHAPES[0], {"a": 8}, expected=4)
    one.submit(request_of("r0", 4, 2))
    while "r0" not in one.ended:
        one.move(*one.moves()[-1])  # the node runs on; what it answers waits
    assert one.ended == {"r0": "finished"}
    lost = one.state.node_failed("killed")
    assert lost == [Lose("r0", "killed")]
    one.carry_out(lost)
    assert one.ended == {"r0": "finished"}


def test_the_first_finishes_first_under_pressure() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=1)
    for number in range(3):
        one.submit(request_of(f"r{number}", 6, 20))
    run_to_the_end(one)
    assert list(one.ended) == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [(0, 4, "prompt is empty"), (30, 3, "at most 32 tokens"), (4, 0, "nothing is left")],
)
def test_what_can_never_be_served_is_refused_with_the_reason(prompt: int, output: int, words: str) -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 100}, expected=4)
    (refused,) = one.state.submit(request_of("r", prompt, output))
    assert isinstance(refused, Refuse)
    assert refused.status == 400
    assert words in refused.reason


def test_the_queue_is_bounded() -> None:
    one = ModelInstance(SHAPES[0], {"a": 4}, expected=4)
    for number in range(8):
        one.submit(request_of(f"r{number}", 10, 6))
    assert one.state.running == 1
    assert one.state.waiting == 6
    assert one.ended == {"r7": "refused 503"}


def test_a_request_past_its_deadline_does_not_wait_on() -> None:
    one = ModelInstance(SHAPES[0], {"a": 4}, expected=4)
    one.submit(request_of("r0", 10, 6))
    late = GenerateRequest(
        id="r1", model="m", prompt_ids=tuple(range(10)), sampling=Sampling(max_tokens=6), deadline_s=100.0
    )
    one.submit(late)
    one.carry_out(one.state.expire(99.0))
    assert not one.ended
    one.carry_out(one.state.expire(101.0))
    assert one.ended == {"r1": "refused 503"}
    run_to_the_end(one)
    assert one.ended["r0"] == "finished"


def test_a_node_that_cannot_open_loses_the_request_and_gives_back_its_blocks() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=4)
    (opened,) = one.state.submit(request_of("r0", 6, 6))
    assert isinstance(opened, Open)
    assert opened.node == "b"
    (release,) = one.state.opened("b", "r0", opened.attempt, error="no")
    assert isinstance(release, Release)
    (lost,) = one.state.released("b", release.sequences)
    assert isinstance(lost, Lose)
    assert "node b cannot open it: no" in lost.reason
    assert one.state.ledger.idle
