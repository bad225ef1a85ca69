"""A streamed answer: server-sent events, written from within the event loop's callbacks.

The request's own task sleeps meanwhile. It wakes when all is written, when the client is gone, or when
a write has to wait for a slow client; it then waits in the write's place, while text gathers up to a bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec
from starlette.types import Message, Send

from coral.core.serve.frontdoor.flusher import Flusher
from coral.core.serve.frontdoor.generation import Generation
from coral.core.serve.frontdoor.openai.chunks import DONE, Chunks, error_event
from coral.core.serve.frontdoor.sending import Unsent, send_now
from coral.core.serve.frontdoor.sequence import Sequence

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_START: Message = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
_json = msgspec.json.encode


class EventStream:
    """An Answer. `begun`: the client has been sent a status, so that an error can only be an event."""

    def __init__(self, generation: Generation, send: Send, flusher: Flusher, max_pending_chars: int) -> None:
        job = generation.job
        self.begun = False
        self._generation = generation
        self._send = send
        self._flusher = flusher
        self._max_pending = max_pending_chars
        self._chunks = Chunks(job.heading, counted=job.include_usage)
        self._frames = [self._chunks.text_frame(i) for i in range(len(job.requests))]
        self._moved: dict[Sequence, None] = {}
        self._out: deque[Message] = deque()
        self._unsent: Unsent | None = None
        self._last = False
        """What was handed to the server last ends the answer."""
        self._closed = False
        """Everything has been written, or nothing more can be."""
        self._fault: Exception | None = None
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()

    # ------------------------------------------------------------ of the generation

    def moved(self, sequence: Sequence) -> None:
        self._moved[sequence] = None
        if self._unsent is None:
            self._flusher.add(self)
        elif sum(waiting.waiting for waiting in self._moved) > self._max_pending:
            self._generation.leave()

    def ended(self) -> None:
        if self._generation.left:
            self._gone.set()
            self._wake.set()
        elif self._unsent is None:
            self._flusher.add(self)

    # ------------------------------------------------------------ of the flusher

    def flush(self) -> None:
        generation = self._generation
        if self._closed or generation.left or self._unsent is not None:
            return
        if generation.error is not None and not self.begun:
            self._close()  # the status is still free to tell it
            return
        body = self._render()
        if not self.begun:
            self.begun = True
            self._out.append(_START)
        if body or generation.over:
            self._out.append({"type": "http.response.body", "body": body, "more_body": not generation.over})
        self._write()

    def broken(self, fault: Exception) -> None:
        self._fault = fault
        self._generation.leave()
        self._close()

    def _render(self) -> bytes:
        generation, chunks = self._generation, self._chunks
        parts: list[bytes] = []
        if not self.begun:
            parts += [chunks.opening(sequence.index) for sequence in generation.sequences]
        for sequence in self._moved:
            text, logged = sequence.take()
            ended = sequence.finish is not None
            if logged and (text or not ended):
                parts.append(chunks.logged_text(sequence.index, text, logged))
                logged = []
            elif text:
                before, after = self._frames[sequence.index]
                parts += (before, _json(text), after)
            if sequence.finish is not None:
                parts.append(chunks.finish(sequence.index, sequence.finish, logged))
        self._moved.clear()
        if generation.error is not None:
            parts.append(error_event(generation.error))
        elif generation.over:
            if generation.job.include_usage:
                parts.append(chunks.usage(generation.usage))
            parts.append(DONE)
        return b"".join(parts)

    def _write(self) -> None:
        while self._out:
            message = self._out.popleft()
            self._last = message.get("more_body") is False
            try:
                self._unsent = send_now(self._send, message)
            except OSError:  # the server's way to say that the client is gone
                self._generation.leave()
                self._close()
                return
            if self._unsent is not None:
                self._generation.blocked_s = asyncio.get_running_loop().time()
                self._wake.set()
                return
            if self._last:
                self._close()

    def _close(self) -> None:
        self._closed = True
        self._wake.set()

    # ------------------------------------------------------------ of the request's task

    async def run(self) -> None:
        """Until the stream has ended. Raises what broke it."""
        while not self._closed and not self._generation.left:
            await self._wake.wait()
            self._wake.clear()
            if self._unsent is not None:
                await self._wait(self._unsent)
        if self._fault is not None:
            raise self._fault

    async def _wait(self, unsent: Unsent) -> None:
        """For a slow client, or until it is given up."""
        writing = asyncio.ensure_future(_finish(unsent))
        waking = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({writing, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            if not writing.done():
                writing.cancel()
        if self._generation.left:
            return
        try:
            writing.result()
        except OSError:
            self._generation.leave()
            self._close()
            return
        self._unsent = None
        self._generation.blocked_s = None
        if self._last:
            self._close()
            return
        self._write()
        if self._unsent is None and not self._closed:
            self._flusher.add(self)


async def _finish(unsent: Unsent) -> Any:
    await unsent
