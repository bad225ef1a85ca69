"""A lean client of the front door: one streamed answer per connection, timed, hardly parsed."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

from msgspec import Struct


class Streamed(Struct, kw_only=True):
    """One request as its client saw it. Times are `time.monotonic()`; 0 where it did not come so far."""

    asked_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish: str = ""
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.asked_s

    @property
    def tpot_s(self) -> float:
        """Per token after the first; 0 of a single token."""
        return (self.last_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


class _Stream(asyncio.Protocol):
    def __init__(self, head_and_body: bytes) -> None:
        self._request = head_and_body
        self._seen = Streamed()
        self._buffer = b""
        self.done: asyncio.Future[Streamed] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by class
        self._seen.asked_s = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._buffer += data
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            return  # the reason comes with the end
        if b'"text":' in data or b'"delta":{"content":' in data:
            self._seen.first_s = self._seen.first_s or now
            self._seen.last_s = now
        if b"data: [DONE]" in self._buffer[-64:]:
            self._end(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._seen.error = self._buffer[-500:].decode(errors="replace") or str(exc)
            self.done.set_result(self._seen)

    def _end(self, now: float) -> None:
        seen = self._seen
        seen.last_s = seen.last_s or now
        for line in self._buffer.split(b"\n"):
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                for choice in event.get("choices", ()):
                    seen.finish = choice.get("finish_reason") or seen.finish
                if usage := event.get("usage"):
                    seen.prompt_tokens = usage["prompt_tokens"]
                    seen.output_tokens = usage["completion_tokens"]
                seen.error = json.dumps(event["error"]) if "error" in event else seen.error
        self._transport.close()
        if not self.done.done():
            self.done.set_result(seen)


async def complete(port: int, model: str, prompt: list[int], timeout_s: float, **fields: Any) -> Streamed:
    """A completion of token ids at a front door on this machine. `fields` go into its body."""
    return await _ask(port, "/v1/completions", {"model": model, "prompt": prompt, **fields}, timeout_s)


async def chat(port: int, model: str, content: str, timeout_s: float, **fields: Any) -> Streamed:
    """An answer to one message of a user; where no `max_tokens` is given its client names no limit."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
    return await _ask(port, "/v1/chat/completions", body, timeout_s)


async def _ask(port: int, path: str, fields: dict[str, Any], timeout_s: float) -> Streamed:
    body = json.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    transport, stream = await loop.create_connection(lambda: _Stream(head.encode() + body), "127.0.0.1", port)
    try:
        return await asyncio.wait_for(stream.done, timeout_s)
    except TimeoutError:
        return Streamed(error=f"no end within {timeout_s:g} s")
    finally:
        transport.abort()
