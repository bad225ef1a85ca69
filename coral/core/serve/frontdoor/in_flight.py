"""Every generation in flight, and what ends one from outside: its deadlines, a slow client, a shutdown."""

from __future__ import annotations

import asyncio
import logging
import time

from coral.core.serve.frontdoor.generation import Generation
from coral.errors import RequestError

log = logging.getLogger(__name__)


class InFlight:
    """One timer looks at all of them: a token costs no timer. One with a deadline has its own."""

    def __init__(self, *, request_timeout_s: float, client_timeout_s: float) -> None:
        self._request_timeout_s = request_timeout_s
        self._client_timeout_s = client_timeout_s
        self._period_s = max(0.01, min(1.0, request_timeout_s / 8, client_timeout_s / 8))
        self._generations: dict[Generation, asyncio.TimerHandle | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, generation: Generation) -> None:
        loop, ends_s = asyncio.get_running_loop(), generation.job.ends_s
        self._generations[generation] = (
            loop.call_later(ends_s - time.time(), self._expire, generation) if ends_s else None
        )
        self._empty.clear()
        if self._timer is None:
            self._timer = loop.call_later(self._period_s, self._look)

    def remove(self, generation: Generation) -> None:
        deadline = self._generations.pop(generation, None)
        if deadline is not None:
            deadline.cancel()
        if not self._generations:
            self._empty.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def __len__(self) -> int:
        return len(self._generations)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for generation in list(self._generations):
            blocked_s = generation.blocked_s
            if blocked_s is not None and now - blocked_s > self._client_timeout_s:
                log.warning("%s: its client takes nothing, dropped", generation.job.heading.id)
                generation.leave()
            elif now - generation.progressed_s > self._request_timeout_s:
                generation.failed(
                    RequestError(
                        f"No token for {self._request_timeout_s:g} s; the request was ended.",
                        status=504,
                        code="timeout",
                    ),
                    stalled=True,
                )
        self._timer = loop.call_later(self._period_s, self._look)

    def _expire(self, generation: Generation) -> None:
        generation.failed(RequestError("The answer took longer than it may.", status=504, code="timeout"))

    async def finished(self, grace_s: float) -> None:
        """Until none is left; after `grace_s` seconds the rest is ended with an error."""
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            for generation in list(self._generations):
                generation.failed(
                    RequestError("The server is shutting down.", status=503, code="service_unavailable")
                )
