"""Prefill and decode instances of any depth, real models: the tokens of the whole Hugging Face model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coral.testing.instance import Answer, InstanceUnderTest, stages
from coral.testing.pair import Pair
from coral.testing.tiny import make_tiny
from coral.types.request import GenerateRequest, Sampling
from tests.core.serve.test_instance_torch import requests, whole_model

pytest.importorskip("torch", reason="the torch engine needs torch")

CACHE = Path(__file__).parents[3] / ".cache" / "tests"
FAMILY = "gpt_oss"
"""Has layers with and without a window, which travel differently."""
PROMPTS = (5, 120, 17, 40, 8, 64, 33, 90, 11, 25, 45, 70)
OUTPUT = 10

PREFILL = {1: ((4,), (2,)), 2: ((1, 4), (1, 1)), 3: ((1, 3, 4), (1, 2, 1))}
DECODE = {1: ((4,), (1,)), 2: ((3, 4), (2, 1)), 3: ((1, 2, 4), (1, 1, 2))}
"""By number of stages: where the layers are cut, and how many nodes each stage has."""

pytestmark = pytest.mark.slow


class Instances:
    """Prefill and decode instances of 1, 2 and 3 stages, all running."""

    def __init__(self, folder: Path, ends: contextlib.ExitStack) -> None:
        self.prefill = {n: ends.enter_context(self._instance("p", n, folder, 4)) for n in PREFILL}
        self.decode = {n: ends.enter_context(self._instance("d", n, folder, 8)) for n in DECODE}
        for instance in (*self.prefill.values(), *self.decode.values()):
            instance.wait_ready(240)

    def _instance(self, kind: str, depth: int, folder: Path, block_size: int) -> InstanceUnderTest:
        cuts, nodes = (PREFILL if kind == "p" else DECODE)[depth]
        return made(f"{kind}{depth}", cuts, nodes, folder, block_size)


def made(
    name: str,
    cuts: tuple[int, ...],
    nodes: tuple[int, ...],
    folder: Path,
    block_size: int,
    channel: str = "zmq",
) -> InstanceUnderTest:
    placement = stages(
        cuts=cuts,
        nodes=nodes,
        engine="torch",
        source=str(folder),
        options={"block_size": block_size, "kv_blocks": 1600 // block_size},
        max_model_len=512,
        step_tokens=32,
        instance=name,
        prefix=f"{name}/",
    )
    return InstanceUnderTest(placement, start_timeout_s=240, grace_s=900, channel=channel)


@pytest.fixture(scope="module")
def folder() -> Path:
    return make_tiny(FAMILY, CACHE / "tiny" / FAMILY)


@pytest.fixture(scope="module")
def instances(folder: Path) -> Iterator[Instances]:
    with contextlib.ExitStack() as ends:
        yield Instances(folder, ends)


@pytest.fixture(scope="module")
def expected(folder: Path) -> tuple[list[GenerateRequest], dict[str, list[int]]]:
    asked = requests(PROMPTS, 250, OUTPUT)
    return asked, whole_model(folder, asked)


@pytest.mark.parametrize("decode", DECODE)
@pytest.mark.parametrize("prefill", PREFILL)
def test_pipelines_of_different_depth_hand_over_and_go_on_with_the_same_tokens(
    prefill: int,
    decode: int,
    instances: Instances,
    expected: tuple[list[GenerateRequest], dict[str, list[int]]],
) -> None:
    asked, tokens = expected
    pair = Pair(instances.prefill[prefill], instances.decode[decode])
    answers = pair.generate(asked, timeout_s=120)
    assert {name: answer.error for name, answer in answers.items() if answer.error} == {}
    assert {name: answer.tokens for name, answer in answers.items()} == tokens
    pair.settled()
    assert pair.handed == set(tokens)


def test_rows_and_kv_over_gloo_give_the_same_tokens(
    folder: Path, expected: tuple[list[GenerateRequest], dict[str, list[int]]]
) -> None:
    """Within an instance of stages 1-2-1, and from there to one of other cuts and blocks."""
    asked, tokens = expected
    with (
        made("pg", (1, 3, 4), (1, 2, 1), folder, 4, channel="gloo") as prefill,
        made("dg", (3, 4), (1, 1), folder, 8, channel="gloo") as decode,
    ):
        for instance in (prefill, decode):
            instance.wait_ready(240)
        whole = prefill.generate(asked, late=4)
        assert {name: answer.tokens for name, answer in whole.items()} == tokens
        pair = Pair(prefill, decode)
        answers = pair.generate([msgspec.structs.replace(one, id=f"{one.id}h") for one in asked])
        assert {name.removesuffix("h"): answer.tokens for name, answer in answers.items()} == tokens
        pair.settled()
        assert pair.handed == {f"{name}h" for name in tokens}


SAMPLED = {
    "seed": Sampling(temperature=1.2, top_p=0.95, top_k=40, seed=11, max_tokens=12),
    "penalties": Sampling(
        temperature=0.8,
        seed=5,
        frequency_penalty=1.5,
        presence_penalty=0.5,
        repetition_penalty=1.3,
        max_tokens=12,
    ),
    "logprobs": Sampling(temperature=0.0, logprobs=3, max_tokens=6),
    "one token": Sampling(temperature=0.0, max_tokens=1, logprobs=0),
    "two tokens": Sampling(temperature=0.9, seed=3, max_tokens=2),
    "bias": Sampling(temperature=0.0, logit_bias={17: 4.0, 60: -100.0}, max_tokens=6),
}


def test_seeds_penalties_logprobs_and_limits_are_those_of_an_instance_that_does_all(
    instances: Instances,
) -> None:
    pair = Pair(instances.prefill[3], instances.decode[2])
    base = requests((30, 50), 250, 1)
    asked = []
    for one in base:
        for name, sampling in SAMPLED.items():
            asked.append(msgspec.structs.replace(one, id=f"{one.id} {name}", sampling=sampling))
        later = msgspec.structs.replace(SAMPLED["penalties"], max_tokens=14)
        moved = msgspec.structs.replace(one, id=f"{one.id} moved", sampling=later, generated=(7, 8))
        asked.append(moved)
    mixed = instances.prefill[1].generate(asked)
    stopped = []
    for one in base:  # a stop id that comes first, one that comes later, and one that min_tokens bars
        free = mixed[f"{one.id} seed"].tokens
        for at, least in ((0, 0), (4, 0), (0, 6)):
            sampling = msgspec.structs.replace(SAMPLED["seed"], stop_ids=(free[at],), min_tokens=least)
            stopped.append(msgspec.structs.replace(one, id=f"{one.id} {at} {least}", sampling=sampling))
    asked += stopped
    mixed |= instances.prefill[1].generate(stopped)
    assert {answer.finish for answer in mixed.values()} == {"stop", "length"}
    apart = pair.generate(asked)
    for name, answer in mixed.items():
        same(apart[name], answer, name)
    pair.settled()


def same(one: Answer, other: Answer, name: str) -> None:
    assert (one.tokens, one.finish, one.error) == (other.tokens, other.finish, ""), name
    for first, second in zip(one.received, other.received, strict=True):
        assert first.position == second.position, name
        assert (first.logprob is None) == (second.logprob is None), name
        if first.logprob is not None:
            assert first.logprob == pytest.approx(second.logprob, abs=1e-4)
        assert [top.token for top in first.top] == [top.token for top in second.top], name


def test_decode_instances_short_of_room_replay_and_give_the_same_tokens(
    folder: Path, expected: tuple[list[GenerateRequest], dict[str, list[int]]], instances: Instances
) -> None:
    asked, tokens = expected
    placement = stages(
        cuts=(2, 4),
        nodes=(1, 1),
        engine="torch",
        source=str(folder),
        options={"block_size": 4, "kv_blocks": 60},
        max_model_len=512,
        step_tokens=32,
        instance="d",
        prefix="d/",
    )
    with InstanceUnderTest(placement, expected_output_tokens=1, start_timeout_s=240) as decode:
        decode.wait_ready(240)
        pair = Pair(instances.prefill[2], decode)
        answers = pair.generate(asked, timeout_s=120)
        assert {name: answer.tokens for name, answer in answers.items()} == tokens
        pair.settled()
        assert decode.fresh_stats().preemptions > 0
