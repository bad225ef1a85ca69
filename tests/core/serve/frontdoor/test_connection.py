"""Connections that never become a request, or never stop being one, are bounded in size, time and number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
import uvloop

from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.server import HttpServer
from coral.testing.serving import Reply, ScriptedServing

Play = Callable[..., ScriptedServing]
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
BODY = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 5}).encode()
QUICK = FrontDoorOptions(client_timeout_s=0.3, max_head_bytes=4096, max_connections=8)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


async def flood(port: int, start: bytes, more: bytes, most: int) -> tuple[int, bytes]:
    """Send `start`, then `more` again and again: bytes that were taken, and what came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    sent = 0
    try:
        while sent < most and not reader.at_eof():
            writer.write(more)
            sent += len(more)
            await asyncio.wait_for(writer.drain(), 5)
            await asyncio.sleep(0)
        return sent, await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return sent, b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (HEAD + b"x: ", b"y" * 1000),
        (HEAD, b"x: y\r\n" * 100),
        (b"POST /", b"y" * 1000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 100),
        (b"", b"\r\n" * 500),
    ],
    ids=["value", "headers", "url", "trailers", "blank lines"],
)
def test_a_head_without_end_is_refused(play: Play, start: bytes, more: bytes) -> None:
    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        sent, _answer = await flood(http.port, start, more, 50_000_000)
        assert sent < 20_000_000  # what the kernel's buffers hold beside it

    play(scene, options=FrontDoorOptions(max_head_bytes=4096))


def test_a_head_that_is_too_large_is_told_so(play: Play) -> None:
    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(HEAD + b"x: " + b"y" * 5000)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        writer.close()

    play(scene, options=FrontDoorOptions(max_head_bytes=4096))


@pytest.mark.parametrize(("sent", "answer"), [(b"", b""), (HEAD, b"HTTP/1.1 408 ")], ids=["silent", "half"])
def test_a_head_that_does_not_come_ends_the_connection(play: Play, sent: bytes, answer: bytes) -> None:
    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(sent)
        got = await asyncio.wait_for(reader.read(), 5)
        assert got[: len(answer)] == answer
        assert bool(got) == bool(answer)
        writer.close()

    play(scene, options=QUICK)


def test_a_head_in_pieces_and_a_second_request_are_served(play: Play) -> None:
    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        for _round in range(2):
            whole = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
            for at in range(0, len(whole), 40):
                writer.write(whole[at : at + 40])
                await asyncio.sleep(0.01)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert head.startswith(b"HTTP/1.1 200 ")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    play(scene, options=QUICK)


def test_an_answer_may_take_longer_than_a_head(play: Play) -> None:
    """Also where the head of the next request waits behind it, half."""

    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY + HEAD)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()

    play(scene, Reply(tokens=(65,) * 5), options=QUICK, step_s=0.2)


def test_connections_over_the_most_are_refused_and_the_others_served(play: Play) -> None:
    options = FrontDoorOptions(max_connections=8)

    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        held = [await asyncio.open_connection("127.0.0.1", http.port) for _ in range(8)]
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        refused = await asyncio.wait_for(reader.read(), 5)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        writer.close()
        mine, ours = held[0]
        ours.write(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert (await asyncio.wait_for(mine.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200 ")
        for _reader, one in held:
            one.close()

    play(scene, options=options)


def test_what_is_no_http_is_refused_in_the_same_shape(play: Play) -> None:
    async def scene(_: ScriptedServing, http: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert "message" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        writer.close()

    play(scene)
