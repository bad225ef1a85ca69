"""Ways a request ends early: client gone, client slow, no progress, failure, shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

import httpx
import pytest
import uvloop

from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.server import HttpServer
from coral.errors import RequestError
from coral.testing.serving import Reply, ScriptedServing
from coral.testing.waiting import until
from coral.types.request import GenerateRequest

Play = Callable[..., ScriptedServing]
ENDLESS = Reply(tokens=(65,) * 500, hang=True)
BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 500}
SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


def raw_request(stream: bool) -> bytes:
    body = json.dumps({**BODY, "stream": stream, "n": 2}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_aborted_within_half_a_second(play: Play, stream: bool) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(raw_request(stream))
        await until(lambda: len(serving.submitted) == 2, 5, "submission")
        await asyncio.sleep(0.05)
        left_s = asyncio.get_running_loop().time()
        writer.transport.abort()
        await until(lambda: len(serving.aborted) == 2, 5, "abort")
        assert max(serving.aborted.values()) - left_s < 0.5
        await until(lambda: http.app.in_flight == 0, 1, "its end")

    play(scene, ENDLESS, step_s=0.01)


def test_a_slow_client_is_dropped_and_delays_nobody(play: Play) -> None:
    big = {**BODY, "stream": True, "n": 100}

    def reply(request: GenerateRequest) -> Reply:
        quick = request.sampling.max_tokens == 20
        return Reply(tokens=(70,) * 500, hang=not quick)

    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", http.port))
            body = json.dumps(big).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            await loop.sock_sendall(slow, head + body)
            await until(lambda: len(serving.submitted) == 100, 5, "submission")
            # it reads nothing; another client is served meanwhile
            async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
                answer = await client.post("/v1/completions", json={**BODY, "max_tokens": 20})
                assert answer.status_code == 200
            await until(lambda: len(serving.aborted) == 100, 10, "the drop")

    play(
        scene,
        reply,
        options=FrontDoorOptions(max_pending_chars=2_000),
        step_s=0.005,
    )


def test_a_client_that_stalls_after_the_last_token_is_dropped(play: Play) -> None:
    """All tokens were generated; what is unsent must still not be held for ever."""
    whole = Reply(tokens=tuple(range(70, 90)) * 25, per_step=500, finish="length")

    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        sent: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            if not sent:
                sent.append(json.dumps({**BODY, "stream": True}).encode())
                return {"type": "http.request", "body": sent[0]}
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        async def send(message: MutableMapping[str, Any]) -> None:
            await asyncio.Event().wait()

        scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [],
        }
        await asyncio.wait_for(http.app(scope, receive, send), 5)
        assert http.app.in_flight == 0
        assert serving.running == 0

    play(scene, whole, options=FrontDoorOptions(client_timeout_s=0.2))


def test_a_server_whose_send_waits_gets_every_byte_in_order(play: Play) -> None:
    """As one with flow control: every other write waits a turn of the loop."""

    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        written: list[bytes] = []
        asked = False
        count = 0

        async def receive() -> MutableMapping[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": json.dumps({**BODY, "stream": True}).encode()}
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal count
            count += 1
            if count % 2:
                await asyncio.sleep(0.002)
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            written.append(body)

        scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [],
        }
        await asyncio.wait_for(http.app(scope, receive, send), 10)
        lines = b"".join(written).decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        assert "".join(event["choices"][0]["text"] for event in events) == "A naïve 👩‍🚀 in 東京 " * 5

    play(scene, "A naïve 👩‍🚀 in 東京 " * 5)


@pytest.mark.parametrize("after", [0, 3])
def test_no_progress_ends_with_504_or_an_event(play: Play, after: int) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            whole = await client.post("/v1/completions", json=BODY)
            assert whole.status_code == 504
            assert whole.json()["error"]["code"] == "timeout"
            assert "0.2 s" in whole.json()["error"]["message"]
            streamed = await client.post("/v1/completions", json={**BODY, "stream": True})
            if after == 0:
                assert streamed.status_code == 504
                assert streamed.json()["error"]["type"] == "server_error"
            else:
                assert streamed.status_code == 200
                events = [line for line in streamed.text.split("\n\n") if line]
                assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout"
                assert "[DONE]" not in streamed.text
        await until(lambda: len(serving.aborted) == 2, 2, "abort")

    play(
        scene,
        Reply(tokens=(70,) * after, hang=True),
        options=FrontDoorOptions(request_timeout_s=0.2),
    )


def test_a_failure_in_mid_stream_is_an_event(play: Play) -> None:
    lost = RequestError("The instance has failed.", status=503, code="service_unavailable")

    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            streamed = await client.post("/v1/completions", json={**BODY, "stream": True, "n": 2})
            events = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
            assert json.loads(events[-1])["error"]["message"] == "The instance has failed."
            whole = await client.post("/v1/completions", json=BODY)
            assert whole.status_code == 503
            assert whole.headers["retry-after"] == "1"

    play(scene, Reply(tokens=(70, 71, 72), error=lost))


def test_a_shutdown_tells_open_streams_and_admits_nothing(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        streamed = {**BODY, "stream": True}
        async with (
            httpx.AsyncClient(base_url=http.url, timeout=10) as client,
            client.stream("POST", "/v1/completions", json=streamed) as response,
        ):
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            http.app.drain()
            refused = await client.post("/v1/completions", json=BODY)
            assert refused.status_code == 503
            assert (await client.get("/ready")).status_code == 503
            stopping = asyncio.create_task(http.stop(grace_s=0.1))
            rest = [line async for line in lines if line]
            await asyncio.wait_for(stopping, 5)
        assert "shutting down" in json.loads(rest[-1].removeprefix("data: "))["error"]["message"]
        assert serving.running == 0
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", http.port)

    play(scene, ENDLESS)


def test_open_requests_finish_within_the_grace(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
            await until(lambda: serving.running == 1, 5, "submission")
            await http.stop(grace_s=5)
            assert (await asking).json()["choices"][0]["finish_reason"] == "length"

    play(scene, Reply(tokens=(70,) * 500, finish="length", per_step=5))
