"""The token socket: last stages push all tokens of an engine step in one message."""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from coral.core.serve.coordinator.sockets import LoopSocket
from coral.core.serve.net.wire import Tokens, decode
from coral.errors import ProtocolError

log = logging.getLogger("coral.coordinator")

HIGH_WATER = 100_000


class TokenSocket:
    """A PULL. `on_tokens` is called in the event loop."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, on_tokens: Callable[[Tokens], None]
    ) -> None:
        self.address = address
        self.malformed = 0
        self._on_tokens = on_tokens
        socket = context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        self._socket = LoopSocket(socket, self._frames)

    def close(self) -> None:
        self._socket.close()

    def _frames(self, frames: list[bytes]) -> None:
        try:
            message = decode(frames[0])
        except ProtocolError as error:
            self.malformed += 1
            if self.malformed <= 10:
                log.warning("tokens: %s", error)
            return
        if isinstance(message, Tokens):
            self._on_tokens(message)
        else:
            self.malformed += 1
