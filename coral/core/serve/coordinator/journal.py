"""What has happened, for people: the last lines are kept, and listeners are told of each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

log = logging.getLogger("coral.coordinator")

Topic = Literal["model", "template", "plan", "machine", "instance", "http", "end"]
KEEP = 500


class Entry(Struct, frozen=True, kw_only=True):
    """`at_s`: seconds since the epoch. `fault`: something went wrong."""

    at_s: float
    topic: Topic
    text: str
    fault: bool = False


class Journal:
    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=KEEP)
        self._listeners: list[Callable[[Entry], None]] = []

    def listen(self, listener: Callable[[Entry], None]) -> None:
        self._listeners.append(listener)

    def say(self, topic: Topic, text: str, *, fault: bool = False) -> None:
        entry = Entry(at_s=time.time(), topic=topic, text=text, fault=fault)
        self.entries.append(entry)
        log.info("%s: %s", topic, text)
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # nowhere to say it (a full disk): the work goes on
                listener(entry)
