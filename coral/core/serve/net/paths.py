"""Payloads over communicators, without a wait in the worker's loop: a thread for each end of each pair.

What a path has finished shows on the `fd` of its `Paths`; faults are kept until they are asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from coral.core.serve.net.communicator import Communicator, Maker, PathBroken
from coral.core.serve.net.messages.data import OpenPath
from coral.types.stage import Buffer

log = logging.getLogger("coral.worker")

H = TypeVar("H")
P = TypeVar("P", bound="Path")


class Path(ABC):
    """One end of one pair. `make` runs in the path's own thread, which then does its work in order."""

    def __init__(self, make: Callable[[], Communicator], name: str, wake: Callable[[], None]) -> None:
        self.ready = False
        """Both ends stand."""
        self.fault = ""
        """Why nothing goes through any more."""
        self._make = make
        self._wake = wake
        self._closed = False
        self._communicator: Communicator | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"path {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Nothing more goes through; never waits."""
        with self._lock:
            self._closed = True
            communicator = self._communicator
        if communicator is not None:
            communicator.abort()
        self._end()

    def _run(self) -> None:
        try:
            communicator = self._make()
            with self._lock:
                self._communicator = communicator
                closed = self._closed
            if closed:
                communicator.abort()
                return
            log.info("%s stands", self._thread.name)
            self.ready = True
            self._wake()
            self._work(communicator)
        except PathBroken as broken:
            self._break(broken.message)
        except Exception as error:  # no memory, a library of another version: nothing goes through any more
            log.exception("a path has failed")
            self._break(f"{type(error).__name__}: {error}")

    def _break(self, why: str) -> None:
        if not self._closed:
            self.fault = why
            self._wake()

    @abstractmethod
    def _work(self, communicator: Communicator) -> None: ...

    @abstractmethod
    def _end(self) -> None:
        """Have the thread see that it is closed."""


class SendPath(Path):
    def __init__(self, make: Callable[[], Communicator], name: str, wake: Callable[[], None]) -> None:
        super().__init__(make, name, wake)
        self._queue: queue.SimpleQueue[Sequence[Buffer] | None] = queue.SimpleQueue()

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Send these as one, after all before; they must not change until they are credited."""
        self._queue.put(buffers)

    def _work(self, communicator: Communicator) -> None:
        while (buffers := self._queue.get()) is not None:
            views = [memoryview(data).cast("B") for data in buffers]
            data = views[0] if len(views) == 1 else bytearray().join(views)
            if len(data):
                communicator.send(data)

    def _end(self) -> None:
        self._queue.put(None)


class ReceivePath(Path, Generic[H]):
    def __init__(self, make: Callable[[], Communicator], name: str, wake: Callable[[], None]) -> None:
        super().__init__(make, name, wake)
        self._queue: queue.SimpleQueue[tuple[H, Sequence[int]] | None] = queue.SimpleQueue()
        self._arrived: deque[tuple[H, tuple[Buffer, ...]]] = deque()

    def expect(self, header: H, sizes: Sequence[int]) -> None:
        """This header has come; buffers of these sizes follow it, sent as one."""
        self._queue.put((header, sizes))

    def arrived(self) -> list[tuple[H, tuple[Buffer, ...]]]:
        """Headers whose buffers are complete, in order."""
        out = []
        while self._arrived:
            out.append(self._arrived.popleft())
        return out

    def _work(self, communicator: Communicator) -> None:
        while (wanted := self._queue.get()) is not None:
            header, sizes = wanted
            total = sum(sizes)
            data = memoryview(communicator.recv(total) if total else b"").cast("B")
            ends = tuple(accumulate(sizes))
            buffers = tuple(data[end - size : end] for size, end in zip(sizes, ends, strict=True))
            self._arrived.append((header, buffers))
            self._wake()

    def _end(self) -> None:
        self._queue.put(None)


class Paths:
    """All paths of one worker."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._paths: list[Path] = []
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def fd(self) -> int:
        """Readable when something has happened on a path since `look`."""
        return self._event

    @property
    def address(self) -> str:
        return self._maker.address

    def look(self) -> None:
        """What has happened is looked at now."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def reach(self, address: str) -> bool:
        """Whether a path to the process at `address` can be made: it has paths too, of the same kind."""
        return address.partition("@")[0] == self._maker.address.partition("@")[0]

    def sending(self, name: str, address: str) -> SendPath:
        """To the process whose `Paths.address` is given."""
        path = SendPath(lambda: self._maker.sender(name, address), name, self._wake)
        return self._started(path)

    def receiving(self, name: str) -> ReceivePath[H]:
        path: ReceivePath[H] = ReceivePath(lambda: self._maker.receiver(name), name, self._wake)
        return self._started(path)

    def drop(self, path: Path) -> None:
        path.close()
        self._paths.remove(path)

    def close(self) -> None:
        for path in self._paths:
            path.close()
        self._paths.clear()
        self._maker.close()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._event)

    def _started(self, path: P) -> P:
        self._paths.append(path)
        path.start()
        return path

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._event, 1)


def open_path(
    paths: Paths | None, address: str, instance: str, generation: int, sender: str
) -> tuple[SendPath | None, OpenPath]:
    """A path to the process at `address`, and what it must be told to make the other end; where there is none
    to be made, the word has no name in it."""
    path, name = None, ""
    if paths is not None and paths.reach(address):
        name = f"{sender}:{secrets.token_hex(8)}"
        path = paths.sending(name, address)
    return path, OpenPath(instance=instance, generation=generation, sender=sender, name=name)
