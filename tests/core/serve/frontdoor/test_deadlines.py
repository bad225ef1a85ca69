"""No answer takes longer than it may, and requests for a model that comes back are let in."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.server import HttpServer
from coral.testing.serving import Reply, ScriptedServing
from coral.testing.waiting import until

Play = Callable[..., ScriptedServing]
STEADY = Reply(tokens=(70,) * 500)
"""Tokens keep coming, far beyond any deadline here."""
BODY: dict[str, Any] = {"model": "tiny", "prompt": "hi", "max_tokens": 500}


@pytest.mark.parametrize(("asked", "server"), [(0.3, None), (0.3, 60.0), (60.0, 0.3), (None, 0.3)])
def test_an_answer_ends_by_the_shorter_deadline(
    play: Play, asked: float | None, server: float | None
) -> None:
    body = BODY if asked is None else {**BODY, "timeout": asked}

    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            began = time.time()
            whole = await client.post("/v1/completions", json=body)
            assert (whole.status_code, whole.json()["error"]["code"]) == (504, "timeout")
            assert 0.25 < time.time() - began < 5.0
            [request] = serving.submitted
            assert 0.2 < request.deadline_s - began < 0.5
            streamed = await client.post("/v1/completions", json={**body, "stream": True})
            events = [line for line in streamed.text.split("\n\n") if line]
            assert len(events) > 2, "what was there was sent"
            assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout"
        await until(lambda: len(serving.aborted) == 2, 2, "abort")
        assert not serving.stalled, "tokens came: no instance is to blame"

    play(scene, STEADY, options=FrontDoorOptions(deadline_s=server), step_s=0.02)


def test_without_one_an_answer_takes_as_long_as_it_takes(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        assert serving.submitted[0].deadline_s == 0

    play(scene, STEADY)


@pytest.mark.parametrize("timeout", [0, -1, 1e9])
def test_a_timeout_out_of_range_is_refused_by_name(play: Play, timeout: float) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            refused = await client.post("/v1/completions", json={**BODY, "timeout": timeout})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "timeout")
        assert not serving.submitted

    play(scene)


def test_one_that_is_given_up_since_nothing_came_is_told_apart_from_one_whose_client_left(
    play: Play,
) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            assert (await client.post("/v1/completions", json=BODY)).status_code == 504
        await until(lambda: len(serving.stalled) == 1, 2, "abort")
        _, writer = await asyncio.open_connection("127.0.0.1", http.port)
        body = json.dumps(BODY).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await until(lambda: serving.running == 1, 5, "submission")
        writer.transport.abort()
        await until(lambda: len(serving.aborted) == 2, 2, "abort")
        assert len(serving.stalled) == 1

    play(scene, Reply(tokens=(), hang=True), options=FrontDoorOptions(request_timeout_s=0.3))


@pytest.mark.parametrize("coming", [True, False])
def test_a_model_without_an_instance_is_refused_unless_one_is_on_its_way(play: Play, coming: bool) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        serving.served = [
            msgspec.structs.replace(model, ready=False, coming=coming) for model in serving.served
        ]
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            assert (await client.get("/ready")).status_code == 503, "a balancer looks elsewhere"
            answer = await client.post("/v1/completions", json=BODY)
            assert answer.status_code == (200 if coming else 503)

    play(scene, "Hello")
