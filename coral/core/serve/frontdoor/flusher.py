"""Writes of one turn of the event loop, gathered: one callback for all streams that have moved.

The tokens of an engine step reach many streams within one callback of the coordinator; each stream is then
written once, in the next. Nothing is queued and no task is woken.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)


class Flushable(Protocol):
    def flush(self) -> None: ...

    def broken(self, fault: Exception) -> None:
        """`flush` raised: the stream ends, its request raises `fault`."""
        ...


class Flusher:
    def __init__(self) -> None:
        self._moved: dict[Flushable, None] = {}

    def add(self, stream: Flushable) -> None:
        """Flush `stream` in the next turn of the loop, once."""
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._flush)
        self._moved[stream] = None

    def _flush(self) -> None:
        moved, self._moved = self._moved, {}
        for stream in moved:
            try:
                stream.flush()
            except Exception as fault:  # of one stream: the others are still written
                log.exception("a stream cannot be written")
                stream.broken(fault)
