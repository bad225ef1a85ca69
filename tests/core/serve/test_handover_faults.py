"""What goes wrong between a prefill and a decode instance, on the mock engine: nobody waits past the lease,
no block stays held, and whoever is not concerned goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from coral.testing.instance import InstanceUnderTest, stages
from coral.testing.pair import Pair
from coral.types.request import GenerateRequest, Sampling

LEASE_S = 3.0
LAYERS = 12


def instance(
    name: str, cuts: tuple[int, ...], nodes: tuple[int, ...], options: dict[str, Any] | None = None
) -> InstanceUnderTest:
    """One that is not taken for dead while a test has stopped some of its processes."""
    placement = stages(
        cuts=cuts,
        nodes=nodes,
        engine="mock",
        options={"kv_blocks": 256, "cost": {"overhead_s": 0.01}, **(options or {})},
        step_tokens=16,
        instance=name,
        prefix=f"{name}/",
    )
    return InstanceUnderTest(placement, kv_lease_s=LEASE_S, silence_s=60, grace_s=900)


def request(name: str, prompt: int = 40, output: int = 12) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        model="model",
        prompt_ids=tuple((7 * i + len(name)) % 1000 for i in range(prompt)),
        sampling=Sampling(temperature=0.0, max_tokens=output),
    )


@pytest.fixture(scope="module")
def prefill() -> Iterator[InstanceUnderTest]:
    with instance("p", (3, LAYERS), (1, 2)) as one:
        one.wait_ready()
        yield one


@pytest.fixture(scope="module")
def decode() -> Iterator[InstanceUnderTest]:
    with instance("d", (5, 9, LAYERS), (1, 1, 2)) as one:
        one.wait_ready()
        yield one


@pytest.fixture
def pair(prefill: InstanceUnderTest, decode: InstanceUnderTest) -> Pair:
    return Pair(prefill, decode)


def undisturbed(instance: InstanceUnderTest, asked: list[GenerateRequest]) -> dict[str, list[int]]:
    """The tokens where one instance does all."""
    answers = instance.generate(asked)
    instance.settled()
    return {name: answer.tokens for name, answer in answers.items()}


def still_serves(pair: Pair) -> None:
    asked = [request(f"after{number}") for number in range(3)]
    answers = pair.generate(asked, timeout_s=30)
    pair.settled()
    assert {name: a.tokens for name, a in answers.items()} == undisturbed(pair.prefill, asked)


@contextlib.contextmanager
def stopped(instance: InstanceUnderTest, *nodes: str) -> Iterator[None]:
    pids = [instance.workers[node].pid for node in nodes]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# ------------------------------------------------------------ clients and limits


def test_an_over_long_prompt_is_refused_with_the_limit_and_decode_is_never_asked(pair: Pair) -> None:
    limit = pair.prefill.wait_ready().max_request_tokens
    answer = pair.generate([request("long", prompt=limit)])["long"]
    assert answer.status == 400
    assert f"at most {limit} tokens" in answer.error
    assert pair.asked == set()
    still_serves(pair)


def test_a_request_that_ends_with_its_first_token_never_goes_over(pair: Pair) -> None:
    asked = request("one", output=1)
    tokens = undisturbed(pair.prefill, [asked])["one"]
    assert pair.generate([asked])["one"].tokens == tokens
    assert pair.asked == set()
    stop = GenerateRequest(
        id="stops",
        model="model",
        prompt_ids=asked.prompt_ids,
        sampling=Sampling(temperature=0.0, max_tokens=9, stop_ids=tuple(tokens)),
    )
    answer = pair.generate([stop])["stops"]
    assert (answer.finish, answer.tokens) == ("stop", tokens)
    pair.settled()


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_leave_at_any_moment_leave_no_block_behind(pair: Pair, seed: int) -> None:
    draw = random.Random(seed)
    waiting = [request(f"r{seed}-{n}", draw.randrange(1, 300), draw.randrange(2, 40)) for n in range(40)]
    flying: list[str] = []
    for one in waiting:
        pair.submit(one)
        flying.append(one.id)
        for _ in range(draw.randrange(3)):
            pair.serve(draw.random() * 0.02)
        if draw.random() < 0.7:
            pair.abort(flying.pop(draw.randrange(len(flying))))
    pair.wait(lambda: all(pair.answers[name].ended for name in flying), 60, "answers for those who stayed")
    assert not any(pair.answers[name].error for name in flying)
    pair.settled()


# ------------------------------------------------------------ between prefill and decode


def test_a_client_that_leaves_between_prefill_and_decode_frees_its_blocks_at_once(pair: Pair) -> None:
    pair.hands_over = False
    pair.submit(request("r0"))
    pair.wait(lambda: bool(pair.answers["r0"].tokens) and "r0" in pair.awaited, 20, "prefilled")
    began = time.monotonic()
    pair.abort("r0")
    pair.settled(LEASE_S)
    assert time.monotonic() - began < LEASE_S


def test_kv_that_nobody_asks_for_is_given_up_with_the_lease(pair: Pair) -> None:
    """And so is room for KV that does not come."""
    first = Sampling(temperature=0.0, max_tokens=1)
    pair.prefill.submit(msgspec.structs.replace(request("r0"), sampling=first), leg="prefill")
    pair.decode.submit(request("r1"), leg="decode")
    for instance, name, words in (
        (pair.prefill, "r0", "no instance has taken its KV over within 3 s"),
        (pair.decode, "r1", "its KV has not come within 3 s"),
    ):
        instance.wait(lambda i=instance, n=name: bool(i.answers[n].error), LEASE_S + 5, "lost")  # type: ignore[misc]
        assert words in instance.answers[name].error
    pair.settled()
    still_serves(pair)


def test_a_decode_leg_whose_prefill_leg_has_gone_is_lost_within_the_lease(
    decode: InstanceUnderTest,
) -> None:
    with instance("q", (LAYERS,), (1,), {"cost": {"overhead_s": 0.05}}) as doomed:
        doomed.wait_ready()
        pair = Pair(doomed, decode)
        pair.submit(request("r0", prompt=640))
        pair.wait(lambda: "r0" in pair.awaited, 20, "handed over")
        pair.serve(0.3)  # some of it has gone over
        assert not pair.answers["r0"].tokens
        for process in doomed.processes:
            process.kill()
        doomed.beating = False
        decode.wait(lambda: bool(decode.answers["r0"].error), LEASE_S + 5, "lost")
        assert "its KV has not come within" in decode.answers["r0"].error
        decode.settled()


# ------------------------------------------------------------ receivers that die or take nothing


def test_a_receiver_that_is_killed_in_mid_transfer_keeps_no_block_and_another_takes_over(
    prefill: InstanceUnderTest, decode: InstanceUnderTest
) -> None:
    asked = [request(f"r{number}", prompt=400) for number in range(3)]
    expected = undisturbed(prefill, asked)
    with instance("e", (LAYERS,), (1,)) as doomed:
        doomed.wait_ready()
        pair = Pair(prefill, doomed)
        for one in asked:
            pair.submit(one)
        pair.wait(lambda: len(pair.awaited) == 3, 20, "handed over")
        for process in doomed.processes:
            process.kill()
        pair.decode = decode  # what a coordinator does when it has heard of it
        for one in asked:
            decode.submit(one, leg="decode")
        pair.wait(lambda: all(pair.answers[one.id].ended for one in asked), 60, "answers")
        for one in asked:
            assert pair.answers[one.id].tokens == expected[one.id]
        pair.settled(LEASE_S + 10)


def test_a_receiver_that_takes_nothing_is_given_up_with_the_lease(prefill: InstanceUnderTest) -> None:
    with instance("e", (LAYERS,), (1,)) as stuck:
        stuck.wait_ready()
        pair = Pair(prefill, stuck)
        pair.submit(request("r0", prompt=300))
        pair.wait(lambda: "r0" in pair.awaited, 20, "asked for")
        with stopped(stuck, "e/s0n0"):
            prefill.wait(lambda: bool(prefill.answers["r0"].error), LEASE_S + 10, "given up")
            assert "e/s0n0 has taken no KV for" in prefill.answers["r0"].error
            prefill.settled()
        pair.wait(lambda: pair.answers["r0"].ended, 5, "lost")
        pair.settled()
        still_serves(pair)


# ------------------------------------------------------------ transfers that break


@pytest.mark.parametrize(
    ("side", "node", "words"),
    [
        ("export", "x/s1n0", "node x/s1n0: its KV cannot be read: export 2 fails"),
        ("import", "y/s0n0", "node y/s0n0: its KV cannot be taken over: import 2 fails"),
    ],
)
def test_a_transfer_that_breaks_loses_the_request_at_once_with_the_reason(
    side: str, node: str, words: str
) -> None:
    fault: dict[str, Any] = {f"fail_at_{side}": 2, "fail_node": node}
    with (
        instance("x", (4, LAYERS), (1, 1), fault) as prefill,
        instance("y", (LAYERS,), (1,), fault) as decode,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        pair = Pair(prefill, decode)
        began = time.monotonic()
        answer = pair.generate([request("r0", prompt=200)])["r0"]
        assert words in answer.error
        assert time.monotonic() - began < LEASE_S, "long before anybody's lease"
        pair.settled()
        still_serves(pair)


def test_a_slow_sender_whose_receiver_has_left_writes_into_nobody(
    pair: Pair, prefill: InstanceUnderTest, decode: InstanceUnderTest
) -> None:
    """The receiving sequence is aborted in mid-transfer, its blocks go to others, the rest still comes."""
    asked = [request(f"n{number}", prompt=60, output=60) for number in range(6)]
    expected = undisturbed(prefill, asked)
    senders = ("p/s0n0", "p/s1n0", "p/s1n1")
    for round_ in range(2):
        name = f"slow{round_}"
        pair.submit(request(name, prompt=900))
        pair.wait(lambda name=name: name in pair.awaited, 20, "asked for")  # type: ignore[misc]
        pair.serve(0.1)
        with stopped(prefill, *senders):
            assert not pair.answers[name].tokens, "it is in mid-transfer"
            decode.abort(name)
            decode.settled()
            for one in asked:
                decode.submit(one)
            decode.wait(lambda: all(decode.answers[one.id].tokens for one in asked), 20, "others run")
        pair.wait(lambda name=name: name in pair.handed, 30, "all sent and credited")  # type: ignore[misc]
        decode.wait(lambda: all(decode.answers[one.id].ended for one in asked), 30, "others done")
        for one in asked:
            assert decode.answers[one.id].tokens == expected[one.id]
        pair.settled()
