"""The scenarios, whole: a system of its own for each, at a scale that is given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.chaos.aborts import aborted
from benchmarks.chaos.asks import Answer, Ask, asks, mock_answer
from benchmarks.chaos.churn import Act, Churn, churned
from benchmarks.chaos.client import Client
from benchmarks.chaos.stage import OTHER, staged
from benchmarks.chaos.starts import starts as started
from benchmarks.chaos.wanted import Layout
from benchmarks.chaos.world import MODEL, World, config
from coral.types.model import Phase

DEADLINE_S = 120.0
UP_S = 180.0
AT_A_TIME = 16


class Given(Struct, frozen=True, kw_only=True):
    """`disaggregate`: prefill and decode run on instances of their own."""

    engine: str = "mock"
    scale: float = 1.0
    seed: int = 0
    disaggregate: bool = False

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("prefill", "decode") if self.disaggregate else ("mixed",)

    def layouts(self, *nodes: tuple[int, ...], count: int = 1, names: Sequence[str] = ("",)) -> list[Layout]:
        """`count` instances of each cut, name and phase."""
        return [
            Layout(count=count, nodes=cut, phase=phase, name=name)
            for cut in nodes
            for name in names
            for phase in self.phases
        ]


def churn(folder: Path, given: Given) -> dict[str, Any]:
    return _churn_of_torch(folder, given) if given.engine == "torch" else _churn_of_mock(folder, given)


def _churn_of_mock(folder: Path, given: Given) -> dict[str, Any]:
    """About 250 instances are added (180 that are asked for, and one for each that is killed) and 150 go."""
    acts: dict[Act, int] = {"add": 180, "remove": 75, "kill worker": 38, "kill scheduler": 37}
    return _mock(folder, given, acts)


def harsh(folder: Path, given: Given) -> dict[str, Any]:
    """All but the coordinator is killed at times, and some processes stand still, for a while or for good."""
    acts: dict[Act, int] = {
        "add": 30,
        "remove": 20,
        "kill worker": 10,
        "kill scheduler": 10,
        "kill agent": 6,
        "kill planner": 3,
        "kill warmed": 12,
        "stop worker": 4,
        "stop scheduler": 4,
        "pause worker": 10,
        "pause scheduler": 10,
    }
    return _mock(folder, given, acts)


def _mock(folder: Path, given: Given, acts: Mapping[Act, int]) -> dict[str, Any]:
    layouts = given.layouts((1,), (1, 1), (1, 2), names=("a", "b", "c"))
    scaled = {act: round(count * given.scale) for act, count in acts.items()}
    wanted = asks(round(1536 * given.scale), given.seed)
    settings = config(folder, engine="mock", machines=6, step_s=0.02, disaggregate=given.disaggregate)
    world = World(folder, layouts, settings)
    try:
        world.system.wait_ready(UP_S)
        churn = Churn(acts=scaled, seconds=240 * given.scale, seed=given.seed)
        return asyncio.run(
            churned(world, layouts, churn, wanted, mock_answer, deadline_s=DEADLINE_S, settle_s=300.0)
        )
    finally:
        world.close()


def _churn_of_torch(folder: Path, given: Given) -> dict[str, Any]:
    """200 requests and 10 kills; what must come is what comes of the same requests beforehand."""
    layouts = given.layouts((1,), (1, 1), *([] if given.disaggregate else [(1, 2)]))
    acts: dict[Act, int] = {"kill worker": round(6 * given.scale), "kill scheduler": round(4 * given.scale)}
    wanted = asks(round(200 * given.scale), given.seed, output=(8, 300), vocabulary=259)
    machine = {"memory": "500MiB", "devices": 8}
    settings = config(folder, engine="torch", machine=machine, disaggregate=given.disaggregate)
    world = World(folder, layouts, settings)
    try:
        world.system.wait_ready(UP_S)
        assert world.system.url is not None
        expected = asyncio.run(undisturbed(world.system.url, wanted))
        churn = Churn(acts=acts, seed=given.seed)
        return asyncio.run(
            churned(
                world, layouts, churn, wanted, expected.__getitem__, deadline_s=DEADLINE_S, settle_s=180.0
            )
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
    settings = config(
        folder,
        engine="mock",
        models=(MODEL, OTHER),
        step_s=0.02,
        every_s=600.0,
        disaggregate=given.disaggregate,
    )
    layouts = given.layouts((1, 1, 1), count=2)
    world = World(folder, layouts, settings, beside={OTHER: given.layouts((1,), count=2)})
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
    layouts = given.layouts((1, 2), (1, 1, 1))
    settings = config(
        folder, engine="mock", step_s=0.01, use={"kv_blocks": 96}, disaggregate=given.disaggregate
    )
    world = World(folder, layouts, settings)
    try:
        world.system.wait_ready(UP_S)
        count = round(1000 * given.scale)
        return asyncio.run(aborted(world, count=count, at_a_time=32, seed=given.seed))
    finally:
        world.close()


def starts(folder: Path, given: Given) -> dict[str, Any]:
    return started(folder, engine=given.engine, workers=(1, 4, 8) if given.scale else (2,))
