"""Thin typed wrappers round each ZeroMQ pattern that Coral uses: DEALER, ROUTER, PUSH, PULL.

All of them: bounded queues, never block, decode nothing but `wire` messages, count and drop what is
malformed. What a full socket does not take waits in a bounded backlog and goes out first at the next
`flush` or `send`; a backlog over its bound raises `Congested`: the peer has stopped reading.

A socket belongs to one thread. `socket` is for pollers; with an edge-triggered one (`loop.add_reader`
on `fd`) call `drain` until it returns nothing.
"""

from __future__ import annotations

from collections import deque

import zmq

from coral.core.serve.net.curve import CurveClient, CurveServer, bind, dial
from coral.core.serve.net.wire import AnyMessage, Message, decode, encode
from coral.errors import CoralError, ProtocolError

HIGH_WATER = 10_000
"""Messages that a socket queues per peer."""
BACKLOG = 10_000
"""Messages that wait in this process for a socket that takes no more."""
LARGEST = 1 << 26
"""Bytes of one message; whoever sends a larger one is cut off before it is held."""
LINGER_MS = 1_000


class Congested(CoralError):
    """A peer has stopped reading."""


class Unreachable(CoralError):
    """A ROUTER knows no peer of that name (never connected, or its connection is gone)."""


class Endpoint:
    """What every wrapper shares: the bounded socket, its backlog, its counters."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, high_water: int) -> None:
        self.socket = context.socket(kind)
        self.socket.linger = LINGER_MS
        self.socket.sndhwm = self.socket.rcvhwm = high_water
        self.socket.maxmsgsize = LARGEST
        self.malformed = 0
        """Frames dropped because they are no message of this protocol."""
        self._backlog: deque[list[bytes]] = deque()

    @property
    def fd(self) -> int:
        """Edge-triggered descriptor for `loop.add_reader`."""
        return int(self.socket.getsockopt(zmq.FD))

    @property
    def address(self) -> str:
        """Where the socket is bound, with the port it got."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def blocked(self) -> bool:
        """Something waits in the backlog."""
        return bool(self._backlog)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        self.socket.close(linger=linger_ms)

    def flush(self) -> bool:
        """Send what waits; True when nothing waits any more."""
        while self._backlog:
            if not self._put(self._backlog[0]):
                return False
            self._backlog.popleft()
        return True

    def _offer(self, frames: list[bytes]) -> None:
        if self.flush() and self._put(frames):
            return
        if len(self._backlog) >= BACKLOG:
            raise Congested(f"a peer of {self.address or 'a socket'} reads nothing: {BACKLOG} messages wait")
        self._backlog.append(frames)

    def _put(self, frames: list[bytes]) -> bool:
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _take(self) -> list[bytes] | None:
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _decode(self, frame: bytes) -> AnyMessage | None:
        try:
            return decode(frame)
        except ProtocolError:
            self.malformed += 1
            return None


class _Sends(Endpoint):
    def send(self, message: Message) -> None:
        self._offer([encode(message)])

    def send_encoded(self, frame: bytes) -> None:
        """A message that was encoded once for several peers."""
        self._offer([frame])


class _Receives(Endpoint):
    def drain(self, limit: int = 1_000) -> list[AnyMessage]:
        """What has arrived, at most `limit` messages; never waits."""
        out: list[AnyMessage] = []
        for _ in range(limit):
            frames = self._take()
            if frames is None:
                break
            if len(frames) != 1:
                self.malformed += 1
            elif (message := self._decode(frames[0])) is not None:
                out.append(message)
        return out


class Dealer(_Sends, _Receives):
    """Dials a ROUTER under a name of its own."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        identity: str,
        keys: CurveClient | None = None,
        high_water: int = HIGH_WATER,
    ) -> None:
        super().__init__(context, zmq.DEALER, high_water)
        self.socket.identity = identity.encode()
        dial(self.socket, address, keys)


class Push(_Sends):
    """Dials a PULL; keeps messages while the peer is away, up to the bounds."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        keys: CurveClient | None = None,
        high_water: int = HIGH_WATER,
    ) -> None:
        super().__init__(context, zmq.PUSH, high_water)
        dial(self.socket, address, keys)


class Pull(_Receives):
    """Binds."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        keys: CurveServer | None = None,
        high_water: int = HIGH_WATER,
    ) -> None:
        super().__init__(context, zmq.PULL, high_water)
        bind(self.socket, address, keys)


class Router(Endpoint):
    """Binds; knows its peers by name. A peer that dials again under its name takes the place over."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        keys: CurveServer | None = None,
        high_water: int = HIGH_WATER,
    ) -> None:
        super().__init__(context, zmq.ROUTER, high_water)
        self.socket.router_mandatory = True
        self.socket.router_handover = True
        bind(self.socket, address, keys)

    def send(self, peer: str, message: Message) -> None:
        """Raises Unreachable where nobody is connected under that name."""
        try:
            self._offer([peer.encode(), encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise Unreachable(f"nobody is connected as {peer!r}") from error

    def tell(self, peer: str, message: Message) -> bool:
        """Say it now or not at all: nothing waits for this peer. False where it is gone or reads nothing."""
        try:
            return self._put([peer.encode(errors="surrogateescape"), encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False

    def flush(self) -> bool:
        """As elsewhere; what waits for a peer that has gone is dropped with it."""
        while self._backlog:
            try:
                if not self._put(self._backlog[0]):
                    return False
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
            self._backlog.popleft()
        return True

    def drain(self, limit: int = 1_000) -> list[tuple[str, AnyMessage]]:
        """(peer, message) of what has arrived, at most `limit` messages; never waits."""
        out: list[tuple[str, AnyMessage]] = []
        for _ in range(limit):
            frames = self._take()
            if frames is None:
                break
            if len(frames) != 2:
                self.malformed += 1
            elif (message := self._decode(frames[1])) is not None:
                out.append((frames[0].decode(errors="surrogateescape"), message))
        return out
