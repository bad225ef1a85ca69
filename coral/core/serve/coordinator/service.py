"""From a config to a system that serves, and back to nothing: the whole life of `coral serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from coral.core.config import Config
from coral.core.plugins import Registry
from coral.core.serve.coordinator.coordinator import Coordinator, Progress
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.frontdoor.app import build_app
from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.server import HttpServer
from coral.core.serve.frontdoor.server import serve as serve_http
from coral.types.plan import Plan


class Stopping:
    """`asked`: end in good order. `at_once`: do not wait for requests in flight."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """The first time in good order, the second at once."""
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()


class Up(Struct, frozen=True, kw_only=True):
    """Everything the first plan wants is ready."""

    url: str
    plan: Plan
    models: tuple[str, ...]


async def serve(
    config: Config,
    registry: Registry,
    folder: Path,
    journal: Journal,
    progress: Progress,
    stopping: Stopping,
    on_up: Callable[[Up], None],
) -> None:
    """Until `stopping`, or until it cannot go on (CoralError). Leaves no process and no machine behind."""
    coordinator = Coordinator(config, registry, folder, journal, progress)
    door = _Door(coordinator, config, journal)
    try:
        life = asyncio.create_task(coordinator.live(), name="coordinator")
        opening = asyncio.create_task(door.open(), name="front door")
        announcing = asyncio.create_task(_announce(coordinator, opening, config, on_up))
        asked = asyncio.create_task(stopping.asked.wait())
        tasks = (life, opening, announcing, asked)
        try:
            await _first_end(life, opening, announcing, asked)
            journal.say("end", "stopping: no new requests")
            coordinator.end_admission()
            await door.close(config.serve.drain_timeout, stopping.at_once)
        finally:
            coordinator.end_admission()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await door.close(0.0, stopping.at_once)
        _raise_first(ended)
    finally:
        await coordinator.close()
        journal.say("end", "all machines are given back")


async def dry_run(
    config: Config,
    registry: Registry,
    folder: Path,
    journal: Journal,
    progress: Progress,
    stopping: Stopping,
) -> Plan | None:
    """The plan `serve` would carry out; None where it was stopped before there was one."""
    coordinator = Coordinator(config, registry, folder, journal, progress, dry=True)
    try:
        planning = asyncio.create_task(coordinator.dry_plan())
        asked = asyncio.create_task(stopping.asked.wait())
        await asyncio.wait((planning, asked), return_when=asyncio.FIRST_COMPLETED)
        stopped = not planning.done()
        for task in (planning, asked):
            task.cancel()
        ended = await asyncio.gather(planning, asked, return_exceptions=True)
        if stopped:
            return None
        _raise_first(ended)
        return planning.result()
    finally:
        await coordinator.close()


class _Door:
    """The front door, open once tokenizers are at hand."""

    def __init__(self, coordinator: Coordinator, config: Config, journal: Journal) -> None:
        self._coordinator = coordinator
        self._config = config
        self._journal = journal
        self._http: HttpServer | None = None

    async def open(self) -> HttpServer:
        await self._coordinator.tokenizers_ready.wait()
        host, _, port = self._config.serve.http.rpartition(":")
        app = build_app(self._coordinator, FrontDoorOptions.of(self._config.serve))
        self._http = await serve_http(app, host.strip("[]"), int(port))
        self._journal.say("http", f"front door at {self._http.url}")
        return self._http

    async def close(self, grace_s: float, at_once: asyncio.Event) -> None:
        if self._http is None:
            return
        http, self._http = self._http, None
        stopping = asyncio.create_task(http.stop(grace_s))
        hurry = asyncio.create_task(at_once.wait())
        await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopping.done():
            await http.stop(0.0)
        await stopping


async def _announce(
    coordinator: Coordinator, opening: asyncio.Task[HttpServer], config: Config, on_up: Callable[[Up], None]
) -> None:
    await coordinator.up.wait()
    http = await asyncio.shield(opening)
    assert coordinator.plan is not None  # it is up
    on_up(Up(url=http.url, plan=coordinator.plan, models=tuple(model.name for model in config.models)))


async def _first_end(
    life: asyncio.Task[None],
    opening: asyncio.Task[HttpServer],
    announcing: asyncio.Task[None],
    asked: asyncio.Task[bool],
) -> None:
    """Until it is to stop: asked to, or a part of it has failed. The door's opening may end well."""
    waiting: set[asyncio.Task[None] | asyncio.Task[HttpServer] | asyncio.Task[bool]]
    waiting = {life, opening, announcing, asked}
    while True:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if life in done or asked in done or any(task.exception() is not None for task in done):
            return
        waiting -= done


def _raise_first(ended: Sequence[object]) -> None:
    """The first failure; one that a group of tasks has wrapped is unwrapped."""
    for result in ended:
        while isinstance(result, BaseExceptionGroup) and len(result.exceptions) == 1:
            result = result.exceptions[0]
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
