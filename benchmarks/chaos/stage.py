"""kill -9 of one of three stage workers, again and again: noticed when, and what others feel of it."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from benchmarks.chaos.asks import asks, mock_answer
from benchmarks.chaos.census import Census, Person
from benchmarks.chaos.churn import told, until
from benchmarks.chaos.client import Client, Outcome
from benchmarks.chaos.world import World

OTHER = "other"
"""A model whose instances nobody kills."""
PLAN = " by wanted\n"
"""What the log says of a plan."""


class Load:
    """Some streams of a model at any time, until `stop`."""

    def __init__(self, client: Client, model: str, streams: int, seed: int) -> None:
        draws = asks(10_000, seed, prompt=(1, 40), output=(100, 200))
        self._asks = iter([replace(ask, model=model, stream=True) for ask in draws])
        self._client = client
        self._going = True
        self.outcomes: list[tuple[Any, Outcome]] = []
        self._tasks = [asyncio.create_task(self._stream()) for _ in range(streams)]

    async def _stream(self) -> None:
        while self._going:
            ask = next(self._asks)
            self.outcomes.append((ask, await self._client.ask(ask)))

    async def stop(self) -> None:
        """After the streams under way."""
        self._going = False
        await asyncio.gather(*self._tasks)

    def gaps_s(self, spans: Sequence[tuple[float, float]]) -> list[float]:
        """Between tokens of a stream, those that end within one of the spans of monotonic time."""
        return [
            later - sooner
            for _, outcome in self.outcomes
            for sooner, later in pairwise(outcome.arrivals_s)
            if any(begin <= later <= end for begin, end in spans)
        ]


async def staged(world: World, *, kills: int, streams: int, before_s: float, seed: int) -> dict[str, Any]:
    """The record of a run on a system that is up, of the models `MODEL` (three stages) and `OTHER`."""
    url = world.system.url
    assert url is not None
    draw = random.Random(seed)
    census = Census(world.system.mark)
    census.look()
    census.start()
    client = Client(url, 60.0)
    hurt, others = Load(client, "tiny", streams, seed), Load(client, OTHER, streams, seed + 1)
    noticed, rebuilt, plans = [], [], 0
    count = len(world.instances())
    built = Counter(one["template"] for one in world.instances())
    try:
        began = time.monotonic()
        await asyncio.sleep(before_s)
        before = (began, time.monotonic())
        during = []
        for _ in range(kills):
            victim = draw.choice([one for one in census.living("worker") if one.instance.startswith("tiny-")])
            plans_before = world.system.log().count(PLAN)
            killed_at, start = time.time(), time.monotonic()
            assert census.send(victim, signal.SIGKILL)
            failed_at = await _failed(world, victim)
            noticed.append(failed_at - killed_at)
            await until(lambda: world.settled(count), 60.0, "the instance rebuilt")
            rebuilt.append(time.monotonic() - start)
            during.append((start, time.monotonic()))
            await _replanned(world, plans_before)
            plans += 1
        await asyncio.gather(hurt.stop(), others.stop())
        await until(world.all_free, 60.0, "all KV free")
    finally:
        await client.close()
        await asyncio.to_thread(census.stop)
    calm, storm = _p99(others.gaps_s([before])), _p99(others.gaps_s(during))
    assert Counter(one["template"] for one in world.instances()) == built
    outcomes = [outcome for _, outcome in (*hurt.outcomes, *others.outcomes)]
    return {
        **told(outcomes, [ask for ask, _ in (*hurt.outcomes, *others.outcomes)], mock_answer),
        "kills": kills,
        "noticed_s_median": round(statistics.median(noticed), 3),
        "noticed_s_max": round(max(noticed), 3),
        "rebuilt_s_median": round(statistics.median(rebuilt), 2),
        "rebuilt_s_max": round(max(rebuilt), 2),
        "replanned": plans,
        "retried": world.system.status()["requests"]["moved"],
        "others_p99_ms_before": round(1000 * calm, 1),
        "others_p99_ms_during": round(1000 * storm, 1),
        "others_p99_ratio": round(storm / calm, 3),
    }


async def _replanned(world: World, plans_before: int) -> None:
    """Raises AssertionError where no plan follows within half a minute."""
    await until(lambda: world.system.log().count(PLAN) > plans_before, 30.0, "another plan")


async def _failed(world: World, victim: Person) -> float:
    """Wall time at which its instance has failed. Raises AssertionError after 10 s."""

    def found() -> list[float]:
        return [
            change.at_s
            for change in world.changes()
            if change.instance == victim.instance and change.after == "failed"
        ]

    await until(lambda: bool(found()), 10.0, f"noticing that {victim.name} is dead")
    return found()[0]


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
