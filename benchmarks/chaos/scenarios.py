"""The scenarios, whole: a system of its own for each, at a scale that is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.chaos.aborts import aborted
from benchmarks.chaos.asks import Answer, Ask, asks, mock_answer
from benchmarks.chaos.churn import Churn, churned
from benchmarks.chaos.client import Client
from benchmarks.chaos.stage import BESIDE, OTHER, STAGES, staged
from benchmarks.chaos.starts import starts as started
from benchmarks.chaos.wanted import Layout
from benchmarks.chaos.world import MODEL, World, config

DEADLINE_S = 60.0
UP_S = 180.0
AT_A_TIME = 16


class Given(Struct, frozen=True, kw_only=True):
    engine: str = "mock"
    scale: float = 1.0
    seed: int = 0


def churn(folder: Path, given: Given) -> dict[str, Any]:
    return _churn_of_torch(folder, given) if given.engine == "torch" else _churn_of_mock(folder, given)


def _churn_of_mock(folder: Path, given: Given) -> dict[str, Any]:
    """About 250 instances are added (171 that are asked for, and one for each that is killed) and 150 go."""
    cuts = ((1,), (1, 1), (1, 2))
    layouts = [Layout(count=1, nodes=nodes, name=name) for nodes in cuts for name in ("a", "b", "c")]
    acts = Churn(
        add=round(180 * given.scale),
        remove=round(75 * given.scale),
        kill_workers=round(38 * given.scale),
        kill_schedulers=round(37 * given.scale),
        seconds=240 * given.scale,
        seed=given.seed,
    )
    wanted = asks(round(1536 * given.scale), given.seed)
    settings = config(folder, engine="mock", machines=6, step_s=0.02)
    world = World(folder, layouts, settings)
    try:
        world.system.wait_ready(UP_S)
        return asyncio.run(
            churned(world, layouts, acts, wanted, mock_answer, deadline_s=DEADLINE_S, settle_s=300.0)
        )
    finally:
        world.close()


def _churn_of_torch(folder: Path, given: Given) -> dict[str, Any]:
    """200 requests and 10 kills; what must come is what comes of the same requests beforehand."""
    layouts = [Layout(count=1), Layout(count=1, nodes=(1, 1)), Layout(count=1, nodes=(1, 2))]
    acts = Churn(kill_workers=round(6 * given.scale), kill_schedulers=round(4 * given.scale), seed=given.seed)
    wanted = asks(round(200 * given.scale), given.seed, output=(8, 300), vocabulary=259)
    machine = {"memory": "500MiB", "devices": 8}
    world = World(folder, layouts, config(folder, engine="torch", machine=machine))
    try:
        world.system.wait_ready(UP_S)
        assert world.system.url is not None
        expected = asyncio.run(undisturbed(world.system.url, wanted))
        return asyncio.run(
            churned(world, layouts, acts, wanted, expected.__getitem__, deadline_s=120.0, settle_s=180.0)
        )
    finally:
        world.close()


async def undisturbed(url: str, wanted: Sequence[Ask]) -> dict[Ask, Answer]:
    """What comes of each when nothing happens. Raises AssertionError where one is not answered."""
    client = Client(url, 600.0)
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(ask: Ask) -> Answer:
        async with room:
            outcome = await client.ask(ask)
        assert outcome.answer is not None, outcome
        return outcome.answer

    try:
        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))
    finally:
        await client.close()


def stage(folder: Path, given: Given) -> dict[str, Any]:
    settings = config(folder, engine="mock", models=(MODEL, OTHER), step_s=0.02, every_s=600.0)
    world = World(folder, [STAGES], settings, beside={OTHER: [BESIDE]})
    try:
        world.system.wait_ready(UP_S)
        return asyncio.run(
            staged(
                world,
                kills=max(2, round(20 * given.scale)),
                streams=8,
                before_s=30 * given.scale,
                seed=given.seed,
            )
        )
    finally:
        world.close()


def aborts(folder: Path, given: Given) -> dict[str, Any]:
    """KV for few requests only, so that some are left while they wait, and some are preempted."""
    layouts = [Layout(count=1, nodes=(1, 2)), Layout(count=1, nodes=(1, 1, 1))]
    settings = config(folder, engine="mock", step_s=0.01, use={"kv_blocks": 96})
    world = World(folder, layouts, settings)
    try:
        world.system.wait_ready(UP_S)
        count = round(1000 * given.scale)
        return asyncio.run(aborted(world, count=count, at_a_time=32, seed=given.seed))
    finally:
        world.close()


def starts(folder: Path, given: Given) -> dict[str, Any]:
    return started(folder, engine=given.engine, workers=(1, 4, 8))
