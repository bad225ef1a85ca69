"""A prefill and a decode instance that hand over, in random orders of everything that can happen."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coral.core.operate.command import Await, Begin, HandedOver, Lose, SendKv
from tests.core.operate.instance_model import LEASE_S, MOST_MOVES, SHAPES, Shape, request_of, token_at
from tests.core.operate.pair_model import Leg, Pair, pair_of


def all_is_given_back(pair: Pair) -> None:
    for instance in (pair.prefill, pair.decode):
        instance.state.ledger.check()
        assert instance.state.idle, f"{instance.name} is stuck with {instance.state.in_flight()}"
        assert instance.state.ledger.idle
        if not instance.state.failed:
            for node in instance.nodes.values():
                assert not node.open
                assert not node.leaving


# Shrinking may take Hypothesis five minutes, as long as a test may run here: a failure must be told instead.
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.data())
def test_whatever_happens_blocks_are_conserved_and_every_request_ends(data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(SHAPES))
    pair = pair_of(one, other, kv=data.draw(st.integers(6, 16)), expected=data.draw(st.integers(1, 12)))
    count = 0
    for _ in range(data.draw(st.integers(5, 200), label="steps")):
        action = data.draw(st.integers(0, 29))
        name = f"r{data.draw(st.integers(0, count - 1))}" if count else ""
        moves = pair.moves()
        if action < 4 and count < 8:
            done = data.draw(st.integers(0, 2))
            pair.submit(
                f"r{count}", data.draw(st.integers(1, 20)), done + data.draw(st.integers(1, 14)), done
            )
            count += 1
        elif action == 4 and name and name not in pair.ended:
            pair.finish(name, "aborted")
        elif action == 5 and name:
            instance = data.draw(st.sampled_from([pair.prefill, pair.decode]))
            node = data.draw(st.sampled_from(sorted(instance.nodes)))
            held = instance.nodes[node].open.get(name)
            if held is not None and not instance.state.failed:
                instance.carry_out(instance.state.sequence_failed(node, name, held.attempt, "told to"))
        elif action == 6:
            pair.pass_time(data.draw(st.sampled_from([1.0, LEASE_S / 2, LEASE_S + 1])))
        elif moves:
            pair.move(*data.draw(st.sampled_from(moves)))
    for instance in (pair.prefill, pair.decode):
        if data.draw(st.integers(0, 4), label=f"{instance.name} fails") == 0:
            instance.carry_out(instance.state.node_failed("killed"))
    for _ in range(6):
        pair.run_to_the_end()
        if pair.prefill.state.idle and pair.decode.state.idle and not pair.on_their_way:
            break
        pair.cut_links()
        pair.pass_time(1.0)
        pair.pass_time(LEASE_S + 1)
    all_is_given_back(pair)
    assert set(pair.ended) == set(pair.asked)
    for name, how in pair.ended.items():
        if how == "finished":
            assert pair.got[name] == [token_at(name, position) for position in range(pair.asked[name])]


@pytest.mark.parametrize("one", SHAPES, ids=["1", "1-1", "1-2-1", "2-2"])
@pytest.mark.parametrize("other", SHAPES, ids=["1", "1-1", "1-2-1", "2-2"])
def test_undisturbed_every_request_is_handed_over_and_finishes(one: Shape, other: Shape) -> None:
    pair = pair_of(one, other)
    for number in range(6):
        pair.submit(f"r{number}", 3 + 2 * number, 5)
    pair.run_to_the_end()
    assert set(pair.ended.values()) == {"finished"}
    assert pair.handed == set(pair.asked)
    assert pair.decode.state.preemptions == pair.prefill.state.preemptions == 0
    all_is_given_back(pair)


def started(pair: Pair, until: Callable[[], bool]) -> None:
    """Move on until something holds."""
    for _ in range(MOST_MOVES):
        if until():
            return
        moves = pair.moves()
        assert moves, "it never comes to that"
        pair.move(*moves[0])


def test_a_preempted_decode_leg_is_replayed_where_it_is() -> None:
    pair = pair_of(SHAPES[1], SHAPES[1], kv=8, expected=1)
    for number in range(2):
        pair.submit(f"r{number}", 6, 20)
    pair.run_to_the_end()
    assert pair.decode.state.preemptions > 0
    assert set(pair.ended.values()) == {"finished"}
    all_is_given_back(pair)


@pytest.mark.parametrize("told_first", [True, False])
def test_a_replay_knows_what_the_prefill_leg_sampled(told_first: bool) -> None:
    """Whenever it is told: while the decode leg waits for its KV, or after it was preempted."""
    pair = pair_of(SHAPES[0], SHAPES[0], kv=8, expected=1)
    state, node = pair.decode.state, pair.decode.nodes["a"]
    awaiting: list[Begin | Await | HandedOver] = []
    pair.told = lambda instance, command: awaiting.append(command)  # type: ignore[method-assign]
    for name, output, leg in (("old", 26, "whole"), ("r0", 20, "decode")):
        request = request_of(name, 6, output)
        pair.asked[name], pair.got[name] = output, []
        pair.decode.carry_out(state.submit(request, leg))  # type: ignore[arg-type]
    started(pair, lambda: bool(awaiting))
    handed = (token_at("r0", 0),)
    if told_first:
        assert state.go_on("r0", handed) == []
    started(pair, lambda: state.preemptions == 1 and state.waiting == 1)
    if not told_first:
        assert state.go_on("r0", handed) == []
    started(pair, lambda: "old" in pair.ended and "r0" in node.open)
    assert node.open["r0"].request.generated == handed
    assert node.open["r0"].leg == "whole"
    pair.got["r0"] += handed
    pair.run_to_the_end()
    assert pair.ended == {"old": "finished", "r0": "finished"}


@pytest.mark.parametrize("seed", range(8))
def test_under_pressure_of_whole_requests_prefill_legs_still_hand_over(seed: int) -> None:
    pair, draw = pair_of(SHAPES[1], SHAPES[1], kv=12, expected=1), random.Random(seed)
    for number in range(2):
        pair.submit(f"whole{number}", 4, 30, whole=True)
        pair.submit(f"r{number}", 12, 4)
    while moves := pair.moves():
        pair.move(*draw.choice(moves))
    assert pair.prefill.state.preemptions > 0
    assert set(pair.ended.values()) == {"finished"}
    all_is_given_back(pair)


@pytest.mark.parametrize("seed", range(12))
def test_without_faults_nobody_waits_for_a_lease(seed: int) -> None:
    """Also where decode legs are preempted in whatever state."""
    draw = random.Random(seed)
    pair = pair_of(SHAPES[1], SHAPES[seed % 4], kv=9, expected=1)
    for number in range(6):
        pair.submit(f"r{number}", draw.randint(1, 8), draw.randint(2, 25))
    while moves := pair.moves():
        pair.move(*draw.choice(moves))
    assert pair.decode.state.preemptions > 0
    assert set(pair.ended.values()) == {"finished"}
    all_is_given_back(pair)


def test_an_answer_to_an_earlier_destination_is_not_taken_for_one_to_the_last() -> None:
    pair = pair_of(SHAPES[0], SHAPES[0])
    pair.submit("r0", 6, 4)
    started(pair, lambda: bool(pair.prefill.nodes["a"].transfers))
    state, to = pair.prefill.state, pair.decode.destination(Await("r0", 0, ("a",)))
    other = msgspec.structs.replace(to, attempt=7)
    assert state.hand_over("r0", other) == [SendKv("a", "r0", 0, other)]
    assert state.kv_sent("a", "r0", 0, to.key) == []
    started(pair, lambda: pair.got["r0"] != [])
    while pair.prefill.nodes["a"].outbox:
        pair.move("outbox", "a", pair.prefill)
    assert state.running == 1
    assert [type(command).__name__ for command in state.kv_sent("a", "r0", 0, other.key)] == ["Release"]


def test_a_prefill_leg_that_nobody_takes_over_is_lost_with_its_lease() -> None:
    pair = pair_of(SHAPES[1], SHAPES[1])
    pair.decode.carry_out(pair.decode.state.drain())
    pair.leg_ended = lambda instance, name, how: None  # type: ignore[method-assign]
    pair.submit("r0", 6, 4)
    pair.run_to_the_end()
    assert pair.prefill.state.running == 1
    pair.pass_time(0)
    pair.pass_time(LEASE_S - 1)
    assert pair.prefill.state.running == 1
    lost: list[str] = []
    pair.leg_ended = lambda instance, name, how: lost.append(f"{name} {how}")  # type: ignore[method-assign]
    pair.pass_time(2)
    pair.run_to_the_end()
    assert lost == ["r0 lost"]
    all_is_given_back(pair)


def test_a_decode_leg_whose_kv_does_not_come_is_lost_with_its_lease_and_says_why() -> None:
    pair = pair_of(SHAPES[1], SHAPES[1])
    pair.submit("r0", 12, 4)
    started(pair, lambda: bool(pair.prefill.nodes["a"].transfers) and len(pair.on_their_way) == 2)
    pair.prefill.carry_out(pair.prefill.state.node_failed("killed"))
    reasons = []
    commands = pair.decode.state.expire(0.0) + pair.decode.state.expire(LEASE_S + 1)
    pair.decode.carry_out(commands)
    for node in ("a", "b"):
        while pair.decode.nodes[node].inbox:
            pair.decode.move("inbox", node)
        while pair.decode.nodes[node].outbox:
            event, arguments = pair.decode.nodes[node].outbox.popleft()
            found = getattr(pair.decode.state, event)(*arguments)
            reasons += [command.reason for command in found if isinstance(command, Lose)]
    assert reasons == [f"a, b: its KV has not come within {LEASE_S:g} s"]
    assert pair.decode.state.ledger.idle


def test_kv_that_keeps_coming_renews_the_lease() -> None:
    pair = pair_of(SHAPES[0], SHAPES[0])
    pair.submit("r0", 20, 4)
    started(pair, lambda: len(pair.on_their_way) == 4)
    for _ in range(3):
        pair.pass_time(LEASE_S - 1)
        pair.move("arrive", "", pair.decode)
        pair.move("outbox", "a", pair.decode)
    pair.run_to_the_end()
    assert pair.ended == {"r0": "finished"}


def test_blocks_stay_until_nothing_of_them_is_under_way() -> None:
    pair = pair_of(SHAPES[0], SHAPES[0])
    pair.submit("r0", 20, 4)
    started(pair, lambda: len(pair.on_their_way) == 2)
    pair.finish("r0", "aborted")
    held = list(pair.on_their_way)
    pair.on_their_way.clear()
    while moves := [move for move in pair.moves() if move[2] is pair.prefill]:
        pair.move(*moves[0])
    assert pair.prefill.state.running == 1, "what is under way may still be read"
    pair.on_their_way.extend(held)
    pair.run_to_the_end()
    all_is_given_back(pair)


def test_a_later_destination_gets_all_of_it() -> None:
    pair = pair_of(SHAPES[2], SHAPES[1])
    pair.submit("r0", 20, 4)
    started(pair, lambda: len(pair.on_their_way) >= 2)
    first = pair.decode
    second = Leg(SHAPES[3], dict.fromkeys("abcd", 40), 4, "other")
    first.carry_out(first.state.node_failed("killed"))
    assert pair.ended.pop("r0") == "lost"  # its coordinator tries elsewhere
    pair.post[pair.prefill].clear()
    pair.decode, second.pair, pair.post[second] = second, pair, deque()
    second.requests["r0"] = first.requests["r0"]
    second.submit(first.requests["r0"], "decode")
    pair.post[second].append(lambda: second.state.go_on("r0", (token_at("r0", 0),)))
    pair.run_to_the_end()
    assert pair.ended == {"r0": "finished"}
    assert pair.got["r0"] == [token_at("r0", position) for position in range(4)]


def test_kv_that_has_left_is_not_handed_over_again() -> None:
    pair = pair_of(SHAPES[0], SHAPES[0])
    pair.submit("r0", 6, 4)
    started(pair, lambda: "r0" in pair.handed)
    (lost,) = pair.prefill.state.hand_over("r0", pair.decode.destination(Await("r0", 9, ("a",))))
    assert lost == Lose("r0", "its KV is no longer here")
