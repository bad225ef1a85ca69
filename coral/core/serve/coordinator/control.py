"""The control socket: agents, schedulers and the planner dial it; each is known by its hello."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import zmq

from coral.core.serve.coordinator.sockets import LoopSocket
from coral.core.serve.net.wire import AnyMessage, Heartbeat, Message, decode, encode
from coral.errors import ProtocolError

log = logging.getLogger("coral.coordinator")

HIGH_WATER = 10_000
LINGER_MS = 500

Peer = bytes
"""A peer's ZeroMQ identity."""


class Control:
    """A ROUTER. `on_message` is told of every message that is well formed, heartbeats included."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        on_message: Callable[[Peer, AnyMessage], None],
    ) -> None:
        self.address = address
        self.malformed = 0
        self._on_message = on_message
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.bind(address)
        self._socket = LoopSocket(socket, self._frames)

    def send(self, peer: Peer, message: Message) -> bool:
        """False where the peer is gone or takes no more."""
        return self._socket.send([peer, encode(message)])

    def beat(self, peers: list[Peer]) -> None:
        """Tell them that the coordinator is there."""
        frame = encode(Heartbeat(at_s=time.time()))
        for peer in peers:
            self._socket.send([peer, frame])

    def close(self) -> None:
        self._socket.close()

    def _frames(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            self.malformed += 1
            return
        try:
            message = decode(frames[1])
        except ProtocolError as error:
            self.malformed += 1
            if self.malformed <= 10:
                log.warning("control: %s (from %r)", error, frames[0][:64])
            return
        self._on_message(frames[0], message)
