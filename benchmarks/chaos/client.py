"""A client that tells apart what has finished, failed in order, was lost, and hung."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
from msgspec import Struct

from benchmarks.chaos.asks import Answer, Ask

SLACK_S = 10.0
"""Beyond its deadline, after which a request counts as hung."""

Kind = Literal["finished", "failed", "lost", "hung"]


class Outcome(Struct, frozen=True, kw_only=True):
    """`failed`: an error was told, in OpenAI's shape, by the deadline. `lost`: the answer broke off without
    a word. `hung`: nothing ended it. `arrivals_s`: monotonic times of what was streamed."""

    kind: Kind
    seconds: float
    answer: Answer | None = None
    status: int = 0
    error: str = ""
    arrivals_s: tuple[float, ...] = ()


class Client:
    """Of one front door. `deadline_s` is each request's, told to the server too."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=deadline_s + 2 * SLACK_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def ask(self, ask: Ask) -> Outcome:
        began = time.monotonic()
        arrivals: list[float] = []
        try:
            async with asyncio.timeout(self._deadline_s + SLACK_S):
                kind, answer, status, error = await self._told(ask, arrivals)
        except TimeoutError:
            kind, answer, status, error = "hung", None, 0, "nothing ended it"
        except httpx.HTTPError as fault:
            kind, answer, status, error = "lost", None, 0, f"{type(fault).__name__}: {fault}"
        return Outcome(
            kind=kind,
            seconds=time.monotonic() - began,
            answer=answer,
            status=status,
            error=error,
            arrivals_s=tuple(arrivals),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def _told(self, ask: Ask, arrivals: list[float]) -> tuple[Kind, Answer | None, int, str]:
        body = ask.body(self._deadline_s)
        async with self._http.stream("POST", "/v1/completions", json=body) as got:
            if got.status_code != 200:
                error = json.loads(await got.aread())["error"]
                return "failed", None, got.status_code, error["message"]
            if not ask.stream:
                choice = json.loads(await got.aread())["choices"][0]
                return "finished", Answer(text=choice["text"], finish=choice["finish_reason"]), 200, ""
            text, finish = "", ""
            async for line in _lines(got):
                if line == b"data: [DONE]":
                    if not finish:
                        return "lost", None, 200, "the stream ends without a reason"
                    return "finished", Answer(text=text, finish=finish), 200, ""
                if line.startswith(b"data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    if "error" in event:
                        return "failed", None, 200, event["error"]["message"]
                    arrivals.append(time.monotonic())
                    for choice in event["choices"]:
                        text += choice["text"]
                        finish = choice["finish_reason"] or finish
        return "lost", None, 200, "the stream broke off"


async def _lines(got: httpx.Response) -> AsyncIterator[bytes]:
    """Lines of server-sent events: text in them may hold other characters that end a line elsewhere."""
    left = b""
    async for data in got.aiter_raw():
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            yield line
