"""The token sockets: last stages push all tokens of an engine step in one message.

One is for this machine (`ipc`), the other, where there is one, for others (TCP, CURVE).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.sockets import LoopSocket
from coral.core.serve.net.curve import CurveServer, bind
from coral.core.serve.net.wire import Tokens, decode
from coral.errors import ProtocolError

log = logging.getLogger("coral.coordinator")

HIGH_WATER = 100_000
NETWORK_HIGH_WATER = 10_000
SAID = 10
LARGEST = 1 << 24
"""Bytes of a message: one engine step's tokens, with their log-probabilities."""


class TokenSocket:
    """PULLs. `on_tokens` is called in the event loop. `may_push(user, instance)`: whether whoever has shown
    that public key may send tokens of that instance."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        on_tokens: Callable[[Tokens], None],
        may_push: Callable[[str, str], bool] = lambda user, instance: not user,
    ) -> None:
        self.address = address
        self.malformed = 0
        self._network_address = ""
        self._context = context
        self._on_tokens = on_tokens
        self._may_push = may_push
        socket = self._pull(HIGH_WATER)
        bind(socket, address, None)
        self._sockets = [LoopSocket(socket, self._frames)]

    def address_of(self, peer: Peer) -> str:
        """Where the instance of that peer pushes."""
        return self._network_address if peer.user else self.address

    def listen(self, address: str, keys: CurveServer, advertised: str) -> None:
        """Take tokens of other machines as well, which reach it at `advertised`.

        Raises zmq.ZMQError where that cannot be bound.
        """
        self._network_address = advertised
        socket = self._pull(NETWORK_HIGH_WATER)
        try:
            bind(socket, address, keys)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        self._sockets.append(LoopSocket(socket, self._frames, keyed=True))

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _pull(self, high_water: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PULL)
        socket.rcvhwm = high_water
        socket.maxmsgsize = LARGEST
        socket.linger = 0
        return socket

    def _frames(self, frames: list[bytes], user: str) -> None:
        try:
            message = decode(frames[0])
        except ProtocolError as error:
            self.malformed += 1
            if self.malformed <= SAID:
                log.warning("tokens: %s", error)
            return
        if isinstance(message, Tokens) and len(frames) == 1 and self._may_push(user, message.instance):
            self._on_tokens(message)
        else:
            self.malformed += 1
