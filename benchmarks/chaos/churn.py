"""Requests while instances are added, removed, and killed: none is lost, none hangs, every one is right."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.chaos.asks import Answer, Ask
from benchmarks.chaos.census import Census, Role
from benchmarks.chaos.client import Client, Outcome
from benchmarks.chaos.wanted import Layout
from benchmarks.chaos.world import World
from coral.testing import waiting

Act = Literal["add", "remove", "kill worker", "kill scheduler"]
LEAST = 3
"""Instances that are wanted at any time."""
APART_S = 2.5
"""Two epochs, and some."""


class Churn(Struct, frozen=True, kw_only=True):
    """What happens to instances, in an order drawn by `seed`, while requests are served.

    Requests come at random moments of `seconds` and acts evenly over them; where that is 0, `at_a_time`
    requests are kept in flight, and acts are spread evenly over their ends.
    """

    add: int = 0
    remove: int = 0
    kill_workers: int = 0
    kill_schedulers: int = 0
    seconds: float = 0.0
    at_a_time: int = 12
    seed: int = 0

    def acts(self) -> list[Act]:
        acts: list[Act] = [
            *["add"] * self.add,  # type: ignore[list-item]
            *["remove"] * self.remove,  # type: ignore[list-item]
            *["kill worker"] * self.kill_workers,  # type: ignore[list-item]
            *["kill scheduler"] * self.kill_schedulers,  # type: ignore[list-item]
        ]
        random.Random(self.seed).shuffle(acts)
        return acts


class Monkey:
    """Does one act after the other, evenly over the time given."""

    def __init__(self, world: World, census: Census, layouts: Sequence[Layout], churn: Churn) -> None:
        self._world = world
        self._census = census
        self._wanted = list(layouts)
        self._churn = churn
        self._draw = random.Random(churn.seed + 1)
        self._changed: dict[tuple[int, int], float] = {}
        self.killed: Counter[Role] = Counter()

    @property
    def wanted(self) -> int:
        return sum(layout.count for layout in self._wanted)

    async def run(self, progress: Callable[[], float]) -> None:
        """`progress` goes from 0 to 1."""
        acts = self._churn.acts()
        for number, act in enumerate(acts):
            await waiting.until(partial(_reached, progress, (number + 0.5) / len(acts)), 3600.0, act)
            await self._do(act)

    async def _do(self, act: Act) -> None:
        match act:
            case "add":
                self._change(+1)
            case "remove":
                while self.wanted <= LEAST:  # a later addition comes first
                    self._change(+1)
                self._change(-1)
            case "kill worker":
                await self._kill("worker")
            case "kill scheduler":
                await self._kill("scheduler")

    def _change(self, by: int) -> None:
        """One more or less of a layout that has not been changed the other way just before: a plan made of
        both would change nothing."""
        now = time.monotonic()
        able = [
            index
            for index, layout in enumerate(self._wanted)
            if layout.count + by >= 0 and now - self._changed.get((index, -by), -APART_S) >= APART_S
        ]
        index = self._draw.choice(able or range(len(self._wanted)))
        layout = self._wanted[index]
        self._wanted[index] = replace(layout, count=max(0, layout.count + by))
        self._changed[index, by] = now
        self._world.want(self._wanted)

    async def _kill(self, role: Role) -> None:
        """Somebody, as soon as there is somebody."""
        while True:
            living = self._census.living(role)
            if living and self._census.kill(self._draw.choice(living)):
                self.killed[role] += 1
                return
            await asyncio.sleep(0.05)


class Load:
    """Requests of a run, sent as its `Churn` says."""

    def __init__(self, client: Client, asks: Sequence[Ask], churn: Churn) -> None:
        self._client = client
        self._asks = asks
        self._churn = churn
        self._began = time.monotonic()
        self._room = asyncio.Semaphore(len(asks) if churn.seconds else churn.at_a_time)
        self._ended = 0

    def progress(self) -> float:
        seconds = self._churn.seconds
        if seconds:
            return min(1.0, (time.monotonic() - self._began) / seconds)
        return self._ended / len(self._asks)

    async def run(self) -> list[Outcome]:
        draw = random.Random(self._churn.seed + 2)
        moments = sorted(draw.uniform(0.0, self._churn.seconds) for _ in self._asks)
        return await asyncio.gather(*map(self._one, self._asks, moments))

    async def _one(self, ask: Ask, at_s: float) -> Outcome:
        await asyncio.sleep(max(0.0, self._began + at_s - time.monotonic()))
        async with self._room:
            outcome = await self._client.ask(ask)
        self._ended += 1
        return outcome


async def churned(
    world: World,
    layouts: Sequence[Layout],
    churn: Churn,
    asks: Sequence[Ask],
    expected: Callable[[Ask], Answer],
    *,
    deadline_s: float,
    settle_s: float = 120.0,
) -> dict[str, Any]:
    """The record of a run on a system that is up. In the end all that is wanted is ready, and all KV free."""
    system = world.system
    assert system.url is not None
    census = Census(system.mark)
    census.look()
    census.start()
    before = len(world.changes())
    client = Client(system.url, deadline_s)
    monkey = Monkey(world, census, layouts, churn)
    began = time.monotonic()
    try:
        load = Load(client, asks, churn)
        outcomes, _ = await asyncio.gather(load.run(), monkey.run(load.progress))
        seconds = time.monotonic() - began
        await until(lambda: world.settled(monkey.wanted), settle_s, "instances as wanted")
        await until(world.all_free, settle_s, "all KV free")
        settled = time.monotonic() - began
    finally:
        await client.close()
        await asyncio.to_thread(census.stop)
    changes = Counter((one.before, one.after) for one in world.changes()[before:])
    ended = Counter(one.instance for one in census.seen if one.role == "scheduler")
    requests = system.status()["requests"]
    return {
        **told(outcomes, asks, expected),
        "retried": requests["moved"],
        "instances_added": changes["placed", "loading"],
        "instances_removed": changes["draining", "gone"],
        "instances_failed": sum(count for (_, after), count in changes.items() if after == "failed"),
        "instances_at_the_end": monkey.wanted,
        "instances_seen": len(ended),
        "killed": sum(monkey.killed.values()),
        "killed_workers": monkey.killed["worker"],
        "killed_schedulers": monkey.killed["scheduler"],
        "pids": len({one.pid for one in census.seen}),
        "processes": len(census.seen),
        "seconds": round(seconds, 1),
        "settled_after_s": round(settled - seconds, 1),
    }


def told(
    outcomes: Sequence[Outcome], asks: Sequence[Ask], expected: Callable[[Ask], Answer]
) -> dict[str, Any]:
    """What has become of requests. `unequal`: finished with another answer than must come."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    unequal = [
        (ask, outcome)
        for ask, outcome in zip(asks, outcomes, strict=True)
        if outcome.kind == "finished" and outcome.answer != expected(ask)
    ]
    errors: Mapping[str, int] = Counter(
        f"{outcome.kind} {outcome.status}: {outcome.error}"[:160] for outcome in outcomes if outcome.error
    )
    return {
        "requests": len(outcomes),
        "finished": kinds["finished"],
        "failed_by_deadline": kinds["failed"],
        "hung": kinds["hung"],
        "lost": kinds["lost"],
        "unequal": len(unequal),
        "errors": dict(errors),
    }


def _reached(progress: Callable[[], float], share: float) -> bool:
    return progress() >= share


async def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """The condition may block: it is asked in a thread. Raises AssertionError."""
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        await asyncio.sleep(0.5)
