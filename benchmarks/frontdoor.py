"""How much CPU the front door takes: streams of 50 tokens at 20 ms over a mock engine, beside a naive server.

    python -m benchmarks.frontdoor --json

Server and clients are processes of their own on one machine. `req_per_s` is what was served in the run;
`cpu_us_per_token` and `core_share` are of the server's process alone. Where `core_share` is near 1 the server
was the limit; where it is well below, the load was, and `req_per_core_s` (per second of CPU) tells more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from typing import cast

import msgspec
import psutil
import uvloop
from msgspec import Struct


class Result(Struct, frozen=True, kw_only=True):
    variant: str
    connections: int
    requests: int
    seconds: float
    req_per_s: float
    tokens_per_s: float
    cpu_us_per_token: float
    cpu_us_per_request: float
    core_share: float
    req_per_core_s: float
    first_event_ms_p50: float
    first_event_ms_p99: float


class _Client(asyncio.Protocol):
    """One connection that asks again and again. Looks for the end of a stream, parses nothing."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._tail = b""
        self._asked_s = 0.0
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by class
        self.ask()

    def ask(self) -> None:
        self._asked_s = time.monotonic()
        self._waiting = True
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            self._waiting = False
            if not data.startswith(b"HTTP/1.1 200"):
                self._load.faults.append(f"the server refused: {data[:300]!r}")
                return
            self._load.first_event_s.append(time.monotonic() - self._asked_s)
        data = self._tail + data
        if b"data: [DONE]" in data and data.endswith(b"0\r\n\r\n"):
            self._tail = b""
            self._load.done += 1
            if self._load.going:
                self.ask()
        else:
            self._tail = data[-40:]


class Load:
    def __init__(self, port: int) -> None:
        body = json.dumps(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": "What is the capital of France? " * 4}],
                "max_tokens": 50,
                "stream": True,
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body
        self.port = port
        self.done = 0
        self.going = True
        self.first_event_s: list[float] = []
        self.faults: list[str] = []

    async def connect(self, connections: int, spread_s: float) -> None:
        """Opens them over `spread_s` seconds, so that streams do not march in step."""
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(lambda: _Client(self), "127.0.0.1", self.port)
            await asyncio.sleep(spread_s / connections)


class Window(Struct, frozen=True, kw_only=True):
    """What was seen between two moments of one run."""

    requests: int
    seconds: float
    cpu_s: float
    first_event_s: tuple[float, ...]


async def observe(port: int, pid: int, connections: int, seconds: float) -> Window:
    """Loads the server and looks at it for `seconds`, after a warm-up."""
    load = Load(port)
    await load.connect(connections, spread_s=2.0)
    await asyncio.sleep(1.5)
    process = psutil.Process(pid)
    before, done, start = process.cpu_times(), load.done, time.monotonic()
    load.first_event_s.clear()
    await asyncio.sleep(seconds)
    after, requests, elapsed = process.cpu_times(), load.done - done, time.monotonic() - start
    load.going = False
    if load.faults or not requests:
        raise RuntimeError(load.faults[0] if load.faults else f"nothing was served in {seconds} s")
    return Window(
        requests=requests,
        seconds=elapsed,
        cpu_s=after.user + after.system - before.user - before.system,
        first_event_s=tuple(sorted(load.first_event_s)),
    )


def measure(variant: str, connections: int, seconds: float, tokens: int = 50, step_s: float = 0.02) -> Result:
    """Starts a server, loads it, and ends it."""
    argv = [sys.executable, "-m", "benchmarks.frontdoor_server", variant, str(tokens), str(step_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            seen = uvloop.run(observe(port, server.pid, connections, seconds))
        finally:
            server.kill()
    count, first = seen.requests, seen.first_event_s
    return Result(
        variant=variant,
        connections=connections,
        requests=count,
        seconds=round(seen.seconds, 2),
        req_per_s=round(count / seen.seconds, 1),
        tokens_per_s=round(count * tokens / seen.seconds),
        cpu_us_per_token=round(seen.cpu_s / (count * tokens) * 1e6, 2),
        cpu_us_per_request=round(seen.cpu_s / count * 1e6, 1),
        core_share=round(seen.cpu_s / seen.seconds, 3),
        req_per_core_s=round(count / seen.cpu_s, 1),
        first_event_ms_p50=round(first[len(first) // 2] * 1e3, 1),
        first_event_ms_p99=round(first[len(first) * 99 // 100] * 1e3, 1),
    )


def run(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontdoor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("--connections", type=int, nargs="+", default=[200, 2000])
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, for each variant and size")
    parser.add_argument("--variants", nargs="+", choices=["ours", "naive"], default=["naive", "ours"])
    options = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = [
        measure(variant, min(10_000, connections), min(60.0, options.seconds))
        for connections in options.connections
        for variant in options.variants
    ]
    if options.json:
        print(msgspec.json.encode(results).decode())
        return
    for result in results:
        print(
            f"{result.variant:6} {result.connections:5} streams: {result.req_per_s:7.1f} req/s, "
            f"{result.cpu_us_per_token:6.2f} us CPU a token, {result.core_share:5.0%} of a core, "
            f"first event p50 {result.first_event_ms_p50} ms, p99 {result.first_event_ms_p99} ms"
        )


if __name__ == "__main__":
    run()
