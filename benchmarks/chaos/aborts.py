"""Clients that leave in every phase of a request: all KV comes back, and no process grows."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import httpx
from msgspec.structs import replace

from benchmarks.chaos.asks import Ask, asks, mock_answer
from benchmarks.chaos.churn import told, until
from benchmarks.chaos.client import Client
from benchmarks.chaos.memory import MemoryLog
from benchmarks.chaos.world import World

How = Literal["at once", "soon", "while streaming", "before an answer", "stop string", "timeout"]
HOWS: Sequence[How] = ("at once", "soon", "while streaming", "before an answer", "stop string", "timeout")
SOON_S = 0.1
STAYS = 4
"""Of so many requests one is not left, and must be answered right."""


class Leaver:
    """A client that does not wait for the end."""

    def __init__(self, url: str, seed: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=60.0, limits=httpx.Limits(max_connections=None))
        self._draw = random.Random(seed)
        self.left: Counter[str] = Counter()

    async def leave(self, ask: Ask) -> None:
        """`left` counts by how it ended; `answered`: the answer was faster."""
        how = self._draw.choice(HOWS)
        body = replace(ask, stream=how not in ("before an answer", "timeout")).body(60.0)
        if how == "stop string":
            body["stop"] = list("ABCDEF")
        if how == "timeout":
            body["timeout"] = self._draw.uniform(0.001, 0.5)
        patience = {"at once": 0.0, "soon": self._draw.uniform(0.0, SOON_S)}.get(
            how, self._draw.uniform(0.0, 1.0)
        )
        lines = self._draw.randrange(1, ask.max_tokens)
        try:
            async with asyncio.timeout(60.0 if how in ("stop string", "timeout") else patience or 0.001):
                async with self._http.stream("POST", "/v1/completions", json=body) as got:
                    async for _ in got.aiter_lines():
                        lines -= 1
                        if how == "while streaming" and lines <= 0:
                            break
        except TimeoutError:
            self.left[how] += 1
        else:
            ended = how in ("while streaming", "stop string") or got.status_code == 504
            self.left[how if ended else "answered"] += 1

    async def close(self) -> None:
        await self._http.aclose()


async def aborted(world: World, *, count: int, at_a_time: int, seed: int) -> dict[str, Any]:
    """The record of a run on a system that is up."""
    url = world.system.url
    assert url is not None
    leaver, client = Leaver(url, seed), Client(url, 60.0)
    all_asks = asks(count + count // STAYS, seed, prompt=(1, 300), output=(4, 160))
    stay = [ask for number, ask in enumerate(all_asks) if number % (STAYS + 1) == STAYS]
    go = [ask for number, ask in enumerate(all_asks) if number % (STAYS + 1) != STAYS]
    room = asyncio.Semaphore(at_a_time)
    memory = MemoryLog(world.system.mark)
    outcomes: dict[int, Any] = {}
    begun = 0

    async def leave(ask: Ask) -> None:
        nonlocal begun
        async with room:
            begun += 1
            if begun == len(go) // 2:
                memory.half()
            await leaver.leave(ask)

    async def stays(number: int, ask: Ask) -> None:
        async with room:
            outcomes[number] = await client.ask(ask)

    work = [leave(ask) for ask in go] + [stays(number, ask) for number, ask in enumerate(stay)]
    random.Random(seed).shuffle(work)
    began = time.monotonic()
    memory.start()
    try:
        await asyncio.gather(*work)
        seconds = time.monotonic() - began
        await until(world.all_free, 60.0, "all KV free")
    finally:
        await asyncio.to_thread(memory.stop)
        await leaver.close()
        await client.close()
    growths = memory.growths()
    requests = world.system.status()["requests"]
    return {
        **told([outcomes[number] for number in range(len(stay))], stay, mock_answer),
        "left": sum(number for how, number in leaver.left.items() if how != "answered"),
        "left_how": dict(leaver.left),
        "aborted": requests["aborted"],
        "preemptions": sum(one["preemptions"] for one in world.instances()),
        "all_blocks_free": True,
        "rss_ratio_worst": max(one.ratio for one in growths),
        "rss_processes": len(growths),
        "rss_most_grown": [f"{one.process}: {one.first_mib} to {one.second_mib} MiB" for one in growths[:3]],
        "seconds": round(seconds, 1),
    }
