"""ZeroMQ sockets on the event loop: `loop.add_reader` and a non-blocking drain.

ZeroMQ's file descriptor is edge triggered: it becomes readable once, and says nothing more until all
that is there has been taken, also after a send. So every wake-up drains until there is nothing left
(in turns, so that a flood does not keep others from running), and every send looks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq

log = logging.getLogger("coral.coordinator")

TURN = 256
"""Messages taken before others on the loop have their turn."""
SAID = 10
"""Failures that are logged with their traceback; more are only counted."""


class LoopSocket:
    """Calls `on_frames(frames, user)` for every message received. Not thread-safe.

    `user` is the public key (Z85) that its sender has shown where the socket is `keyed`, else empty. What
    `on_frames` raises is logged and counted: whatever a peer sends, the others are heard.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_frames: Callable[[list[bytes], str], None],
        *,
        keyed: bool = False,
    ) -> None:
        self.failed = 0
        self._socket = socket
        self._on_frames = on_frames
        self._receive = self._receive_keyed if keyed else self._receive_plain
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._again: asyncio.Handle | None = None
        self._closed = False
        self._loop.add_reader(self._descriptor, self._drain)
        self.look()

    def send(self, frames: list[bytes]) -> bool:
        """False where the peer is unknown, gone, or takes no more."""
        if self._closed:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        finally:
            self.look()
        return True

    def look(self) -> None:
        """Drain at the loop's next turn, whatever the file descriptor says."""
        if self._again is None and not self._closed:
            self._again = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._again = None
        self._drain()

    def _drain(self) -> None:
        for _ in range(TURN):
            if self._closed:
                return
            try:
                frames, user = self._receive()
            except zmq.Again:
                return
            try:
                self._on_frames(frames, user)
            except Exception:  # of our own, but a peer's message has brought it about
                self.failed += 1
                if self.failed <= SAID:
                    log.exception("a message of %r cannot be taken", user or frames[0][:64])
        self.look()

    def _receive_plain(self) -> tuple[list[bytes], str]:
        return self._socket.recv_multipart(zmq.NOBLOCK), ""

    def _receive_keyed(self) -> tuple[list[bytes], str]:
        frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        return [frame.bytes for frame in frames], str(frames[-1].get("User-Id"))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        if self._again is not None:
            self._again.cancel()
        self._socket.close()
