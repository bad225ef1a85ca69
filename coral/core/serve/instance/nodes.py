"""The scheduler's line to its workers: one socket, who is alive, who can be reached."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator

import zmq

from coral.core.serve.net.plane import Plane
from coral.core.serve.net.transport import Congested, Router, Unreachable
from coral.core.serve.net.wire import AnyMessage, Heartbeat, Message, Shutdown, WorkerFailed
from coral.core.serve.worker.beat import SUFFIX

log = logging.getLogger("coral.scheduler")

SAID = 10
"""Messages of strangers that are logged; more are only counted."""
UNREACHABLE_S = 3.0
"""A node whose connection is gone for so long is dead, whatever its last heartbeat."""


class NodeLost(Exception):
    """A node cannot be told what it must be told."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


class Nodes:
    """Every node dials twice: for control, and, from a thread of its own, for heartbeats."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], plane: Plane, silence_s: float) -> None:
        self._router = Router(context, plane.address(f"s{os.getpid()}"), keys=plane.server)
        self.strangers = 0
        """Messages of peers that are no nodes of this instance."""
        self._silence_s = silence_s
        self._heard: dict[str, float] = {}
        self._reached: dict[str, float] = {}
        self._arrived: deque[tuple[str, AnyMessage]] = deque()

    @property
    def address(self) -> str:
        return self._router.address

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._router.socket

    def joined(self, node: str, now: float) -> None:
        """Watch this node from now on."""
        self._heard[node] = self._reached[node] = now

    def send(self, node: str, message: Message) -> None:
        """Raises NodeLost where the node is gone or has stopped reading."""
        try:
            self._router.send(node, message)
        except (Unreachable, Congested) as error:
            raise NodeLost(node, f"node {node} cannot be reached: {error}") from error

    def stranger(self, peer: str, message: AnyMessage) -> None:
        """Who sent this is no node of this instance: it is counted and changes nothing."""
        self.strangers += 1
        if self.strangers <= SAID:
            log.warning("a %s of %.64r, which is no node here, is ignored", type(message).__name__, peer)

    def dismiss(self, node: str, reason: str) -> None:
        """Tell a node that is none of ours to go; it may be gone already."""
        self._router.tell(node, Shutdown(reason=reason))

    def drain(self, now: float) -> Iterator[tuple[str, AnyMessage]]:
        """(node, message) of what has arrived; heartbeats are noted and left out."""
        self._router.flush()
        for peer, message in self._router.drain():
            node = peer.removesuffix(SUFFIX)
            if node in self._heard:
                self._heard[node] = now
            if not isinstance(message, Heartbeat):
                self._arrived.append((node, message))
        while self._arrived:
            yield self._arrived.popleft()

    def last_words(self, node: str, now: float) -> str:
        """Why a node that cannot be reached has left, if it has said so; other messages are lost."""
        for peer, message in self.drain(now):
            if peer == node and isinstance(message, WorkerFailed):
                return message.reason
        return ""

    def beat(self, now: float) -> None:
        """Tell every node that the scheduler is there."""
        beat = Heartbeat(at_s=time.time())
        for node in self._heard:
            if self._tell(node + SUFFIX, beat):
                self._reached[node] = now

    def lost(self, now: float) -> tuple[str, str] | None:
        """(node, reason) of a node that is dead, if any."""
        for node, heard in self._heard.items():
            if now - heard > self._silence_s:
                return node, f"node {node} has been silent for {now - heard:.1f} s"
            if now - self._reached[node] > UNREACHABLE_S:
                return node, f"node {node} has closed its connection"
        return None

    def shut_down(self, reason: str) -> None:
        """Tell every node to end, in whatever it is doing."""
        for node in self._heard:
            for peer in (node, node + SUFFIX):
                self._tell(peer, Shutdown(reason=reason))

    def close(self) -> None:
        self._router.close()

    def _tell(self, peer: str, message: Message) -> bool:
        """False where the peer is not there to hear it."""
        try:
            self._router.send(peer, message)
        except (Unreachable, Congested):
            return False
        return True
