"""Requests while instances are added, removed, and killed: none is lost, none hangs, every one is right."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.chaos.asks import Answer, Ask
from benchmarks.chaos.census import Census, Person
from benchmarks.chaos.client import Client, Outcome
from benchmarks.chaos.wanted import Layout
from benchmarks.chaos.world import World
from coral.testing import waiting

Act = Literal[
    "add",
    "remove",
    "kill worker",
    "kill scheduler",
    "kill agent",
    "kill planner",
    "kill warmed",
    "stop worker",
    "stop scheduler",
    "pause worker",
    "pause scheduler",
]
"""What is stopped (SIGSTOP) stays so; what is paused goes on soon."""
PAUSE_S = 2.0
LEAST = 3
"""Instances that are wanted at any time."""
APART_S = 2.5
"""Two epochs, and some."""


class Churn(Struct, frozen=True, kw_only=True):
    """How often each act is done while requests are served, in an order drawn by `seed`.

    Requests come at random moments of `seconds` and acts evenly over them; where that is 0, `at_a_time`
    requests are kept in flight, and acts are spread evenly over their ends.
    """

    acts: Mapping[Act, int]
    seconds: float = 0.0
    at_a_time: int = 12
    seed: int = 0

    def in_order(self) -> list[Act]:
        acts = [act for act, count in self.acts.items() for _ in range(count)]
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
        self.killed: Counter[str] = Counter()
        self.stopped = 0

    @property
    def wanted(self) -> int:
        return sum(layout.count for layout in self._wanted)

    async def run(self, progress: Callable[[], float]) -> None:
        """`progress` goes from 0 to 1."""
        acts = self._churn.in_order()
        for number, act in enumerate(acts):
            await waiting.until(partial(_reached, progress, (number + 0.5) / len(acts)), 3600.0, act)
            await self._do(act)

    async def _do(self, act: Act) -> None:
        match act.split():
            case ["add"]:
                self._change(+1)
            case ["remove"]:
                while self.wanted <= LEAST:  # a later addition comes first
                    self._change(+1)
                self._change(-1)
            case ["kill", role]:
                await self._signal(role, signal.SIGKILL)
                self.killed[role] += 1
            case ["stop", role]:
                await self._signal(role, signal.SIGSTOP)
                self.stopped += 1
            case ["pause", role]:
                person = await self._signal(role, signal.SIGSTOP)
                later = asyncio.get_running_loop().call_later
                later(PAUSE_S, self._census.send, person, signal.SIGCONT)

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

    async def _signal(self, role: str, number: signal.Signals) -> Person:
        """To somebody, as soon as there is somebody."""
        while True:
            living = self._census.living(role)
            if living:
                person = self._draw.choice(living)
                if self._census.send(person, number):
                    return person
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
    seen = {one.instance for one in census.seen if one.role == "scheduler"}
    requests = system.status()["requests"]
    return {
        **told(outcomes, asks, expected),
        "retried": requests["moved"],
        "instances_added": changes["placed", "loading"],
        "instances_removed": sum(count for (_, after), count in changes.items() if after == "gone"),
        "instances_failed": sum(count for (_, after), count in changes.items() if after == "failed"),
        "instances_at_the_end": monkey.wanted,
        "instances_seen": len(seen),
        "killed": sum(monkey.killed.values()),
        "killed_roles": dict(monkey.killed),
        "stopped": monkey.stopped,
        "pids": len({one.pid for one in census.seen if one.role in ("scheduler", "worker")}),
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
