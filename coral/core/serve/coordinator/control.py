"""The control sockets: agents, schedulers and the planner dial them; each is known by its hello.

One is for this machine (`ipc`), the other, where there is one, for others (TCP, CURVE).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import zmq

from coral.core.serve.coordinator.sockets import LoopSocket
from coral.core.serve.net.curve import CurveServer, bind
from coral.core.serve.net.wire import AnyMessage, Heartbeat, Message, OtherProtocol, decode, encode
from coral.errors import ProtocolError

log = logging.getLogger("coral.coordinator")

HIGH_WATER = 10_000
NETWORK_HIGH_WATER = 1_000
LINGER_MS = 500
SAID = 10
LARGEST = 1 << 26
"""Bytes of a message of this machine: the planner's plans are the largest."""
LARGEST_OF_OTHERS = 1 << 20
"""Bytes of a message of another machine; whoever sends a larger one is cut off before it is held."""


class Peer(NamedTuple):
    """Somebody who has sent something. `user`: the public key (Z85) that it has shown; empty for processes
    of this machine."""

    identity: bytes
    user: str = ""

    def __str__(self) -> str:
        return repr(self.identity[:64].decode(errors="replace"))


class Control:
    """ROUTERs. `on_message` is told of every message that is well formed, heartbeats included."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        on_message: Callable[[Peer, AnyMessage], None],
        on_other_protocol: Callable[[Peer, int], None] = lambda peer, version: None,
    ) -> None:
        """`on_other_protocol(peer, version)`: somebody speaks a version that is not ours."""
        self.address = address
        self.malformed = 0
        self._context = context
        self._on_message = on_message
        self._on_other_protocol = on_other_protocol
        socket = self._router(HIGH_WATER, LARGEST)
        bind(socket, address, None)
        self._here = LoopSocket(socket, self._frames)
        self._network: LoopSocket | None = None

    def listen(self, address: str, keys: CurveServer) -> None:
        """Take messages of other machines as well. Raises zmq.ZMQError where that cannot be bound."""
        socket = self._router(NETWORK_HIGH_WATER, LARGEST_OF_OTHERS)
        try:
            bind(socket, address, keys)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        self._network = LoopSocket(socket, self._frames, keyed=True)

    def send(self, peer: Peer, message: Message) -> bool:
        """False where the peer is gone or takes no more."""
        return self._send(peer, encode(message))

    def beat(self, peers: list[Peer]) -> None:
        """Tell them that the coordinator is there."""
        frame = encode(Heartbeat(at_s=time.time()))
        for peer in peers:
            self._send(peer, frame)

    def close(self) -> None:
        self._here.close()
        if self._network is not None:
            self._network.close()

    def _router(self, high_water: int, largest: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = socket.router_handover = True
        socket.sndhwm = HIGH_WATER
        socket.rcvhwm = high_water
        socket.maxmsgsize = largest
        socket.linger = LINGER_MS
        return socket

    def _send(self, peer: Peer, frame: bytes) -> bool:
        socket = self._network if peer.user else self._here
        return socket is not None and socket.send([peer.identity, frame])

    def _frames(self, frames: list[bytes], user: str) -> None:
        peer = Peer(frames[0], user)
        if len(frames) != 2:
            self.malformed += 1
            return
        try:
            message = decode(frames[1])
        except ProtocolError as error:
            self.malformed += 1
            if self.malformed <= SAID:
                log.warning("control: %s (from %s)", error, peer)
            if isinstance(error, OtherProtocol):
                self.beat([peer])  # in ours, which tells it which that is
                self._on_other_protocol(peer, error.version)
            return
        self._on_message(peer, message)
