"""Headers by ZeroMQ, and payloads as further frames of the same message, not copied; or, with `paths`,
by communicators beside them (`gloo`, `nccl`).

Every worker binds a ROUTER and dials its peers with a DEALER under its own name; credit comes back on
the same connection, so a receiver need not know where its senders are.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import zmq

from coral.core.serve.net.address import joined
from coral.core.serve.net.arrivals import LINK, Arrivals
from coral.core.serve.net.channel import ChannelBroken, Received, ReceivedKv
from coral.core.serve.net.curve import CurveClient, CurveServer
from coral.core.serve.net.curve import bind as bind_socket
from coral.core.serve.net.kv_links import KV_WINDOW, KvLinks
from coral.core.serve.net.messages.data import Credit, Feed, OpenPath, Rows
from coral.core.serve.net.messages.handover import Kv
from coral.core.serve.net.paths import Paths
from coral.core.serve.net.payload import LARGEST_PAYLOAD, fault, kv_bytes, kv_fault, rows_bytes
from coral.core.serve.net.peers import WINDOW, Peers
from coral.core.serve.net.transport import HIGH_WATER, LINGER_MS
from coral.core.serve.net.wire import decode, encode
from coral.errors import ProtocolError
from coral.types.stage import Buffer, HiddenRows

PROBE_S = 5.0
"""Between looks at who still holds the other ends of links."""


class _Incoming:
    """What came of one sender: the last message, and rows not used yet."""

    __slots__ = ("open", "rows", "sequence")

    def __init__(self) -> None:
        self.sequence = 0
        self.rows = 0
        self.open: dict[int, None] = {}


class ZmqChannel:
    """`bind`, for example `ipc:///run/w1`, is where peers reach this node."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        node: str,
        bind: str,
        server_keys: CurveServer | None = None,
        client_keys: CurveClient | None = None,
        window: int = WINDOW,
        kv_window: int = KV_WINDOW,
        paths: Paths | None = None,
    ) -> None:
        self._node = node
        self._instance, self._generation = "", 0
        self._router = context.socket(zmq.ROUTER)
        self._router.linger = LINGER_MS
        self._router.sndhwm = self._router.rcvhwm = HIGH_WATER
        self._router.maxmsgsize = LARGEST_PAYLOAD
        self._router.router_mandatory = True
        bind_socket(self._router, bind, server_keys)
        self._senders: Collection[str] | None = None
        self._in: dict[str, _Incoming] = {}
        self._paths = paths
        self._arrivals: Arrivals | None = None if paths is None else Arrivals(paths)
        self._peers = Peers(context, node=node, keys=client_keys, window=window, paths=paths)
        self.may_send, self.send_rows = self._peers.may_send, self._peers.send_rows
        self.feed = self._peers.feed
        self._links = KvLinks(context, node=node, keys=client_keys, window=kv_window, paths=paths)
        self.link, self.unlink = self._links.link, self._links.unlink
        self.may_send_to, self.send_kv = self._links.may_send_to, self._links.send_kv
        self.kv_credited, self.link_fault = self._links.kv_credited, self._links.link_fault
        self._credited: dict[str, int] = {}
        """The last message that was credited, by link that opened a path."""
        self._probed_s = 0.0
        self._malformed = 0

    @property
    def malformed(self) -> int:
        """Messages dropped: not of this instance, of a node that does not send here, or no message at all."""
        return self._malformed + self._peers.malformed + self._links.malformed

    @property
    def unreached(self) -> list[str]:
        return self._peers.unreached

    @property
    def address(self) -> str:
        socket = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        return joined(socket, self._paths.address if self._paths is not None else "")

    @property
    def sockets(self) -> list[zmq.Socket[bytes] | int]:
        """For a poller: where rows, fed tokens, KV and credit arrive."""
        paths = [] if self._paths is None else [self._paths.fd]
        return [self._router, *self._peers.sockets, *self._links.sockets, *paths]

    def join(self, instance: str, generation: int) -> None:
        """Messages of any other instance or generation are dropped from now on."""
        self._instance, self._generation = instance, generation
        self._peers.join(instance, generation)

    def connect(self, peers: Mapping[str, str], senders: Collection[str] | None = None) -> None:
        self._senders = senders
        self._peers.connect(peers)

    def receive(self, limit: int = 1_000) -> list[Received | ReceivedKv]:
        self._peers.take_credit()
        self._links.take_credit()
        received: list[Received | ReceivedKv] = []
        for _ in range(limit):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            message = self._read(frames)
            if message is not None:
                received.append(message)
        if self._arrivals is not None:
            received += self._complete(self._arrivals)
            self._probe(self._arrivals, time.monotonic())
        return received

    def done(self, header: Rows | Kv) -> None:
        if isinstance(header, Kv):
            credited = header.sequence
            if self._by_path(header.sender):
                self._credited[header.sender] = credited
        else:
            incoming = self._in[header.sender]
            incoming.open.pop(header.sequence, None)
            credited = incoming.rows - len(incoming.open)
        self._credit(header.sender, credited)

    def close(self) -> None:
        self._peers.close()
        self._links.close()
        if self._paths is not None:
            self._paths.close()
        self._router.close(linger=LINGER_MS)

    def _credit(self, peer: str, sequence: int) -> bool:
        """False where the peer is gone."""
        credit = Credit(
            instance=self._instance, generation=self._generation, sender=self._node, sequence=sequence
        )
        try:
            self._router.send_multipart([peer.encode(), encode(credit)], zmq.NOBLOCK)
        except zmq.Again:
            pass  # it reads nothing now; what is credited later counts for this as well
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _read(self, frames: Sequence[zmq.Frame]) -> Received | ReceivedKv | None:
        try:
            peer = frames[0].bytes.decode()
            header = decode(frames[1].bytes)
        except (IndexError, UnicodeDecodeError, ProtocolError):
            self._malformed += 1
            return None
        if isinstance(header, Kv):
            return self._read_kv(peer, header, frames[2:])
        if isinstance(header, OpenPath):
            self._open(peer, header)
            return None
        payloads = 1 if isinstance(header, Rows) and not self._by_path(peer) else 0
        ours = (
            isinstance(header, Rows | Feed)
            and self._of_instance(peer, header)
            and len(frames) == 2 + payloads
        )
        if not ours or not isinstance(header, Rows | Feed):
            self._malformed += 1
            return None
        incoming = self._in.setdefault(peer, _Incoming())
        if header.sequence != incoming.sequence + 1:
            raise ChannelBroken(
                f"{self._node} got message {header.sequence} of {peer} after {incoming.sequence}"
            )
        incoming.sequence = header.sequence
        if isinstance(header, Feed):
            return Received(header=header)
        size = frames[2].buffer.nbytes if payloads else rows_bytes(header)
        wrong = fault(header, size)
        if wrong is not None:
            raise ChannelBroken(f"{self._node} got rows from {peer} that do not fit their header: {wrong}")
        incoming.rows += 1
        incoming.open[header.sequence] = None
        if payloads:
            return _rows(header, frames[2].buffer)
        assert self._arrivals is not None  # they come by a path
        self._arrivals.expect(peer, header, [size])
        return None

    def _read_kv(self, peer: str, header: Kv, frames: Sequence[zmq.Frame]) -> ReceivedKv | None:
        """A peer of another instance breaks nothing here: what does not fit is dropped."""
        ours = (header.sender, header.instance, header.generation) == (
            peer,
            self._instance,
            self._generation,
        )
        payload = tuple(frame.buffer for frame in frames)
        by_path = self._by_path(peer)
        sizes = kv_bytes(header) if by_path else [data.nbytes for data in payload]
        if not ours or kv_fault(header, sizes) is not None or (by_path and payload):
            self._malformed += 1
        elif by_path and self._arrivals is not None:
            self._arrivals.expect(peer, header, sizes)
        else:
            return ReceivedKv(header=header, frames=payload)
        return None

    def _of_instance(self, peer: str, header: Rows | Feed | OpenPath) -> bool:
        return (
            header.sender == peer
            and (self._senders is None or peer in self._senders)
            and header.instance == self._instance
            and header.generation == self._generation
        )

    def _open(self, peer: str, opening: OpenPath) -> None:
        """A peer is about to send here. One of this instance hears that it has come through."""
        link = LINK in peer
        ours = opening.sender == peer if link else self._of_instance(peer, opening)
        if not ours or (opening.name and self._arrivals is None):
            self._malformed += 1
            return
        if opening.name and self._arrivals is not None:
            self._arrivals.open(peer, opening.name)
        if not link:
            self._credit(peer, 0)

    def _by_path(self, peer: str) -> bool:
        return self._arrivals is not None and peer in self._arrivals

    def _complete(self, arrivals: Arrivals) -> list[Received | ReceivedKv]:
        """What came by paths. A path of this instance that is broken breaks the channel."""
        for peer, why in arrivals.broken():
            if LINK not in peer:
                raise ChannelBroken(f"{self._node} gets nothing more from {peer}: {why}")
        return [
            _rows(header, frames[0]) if isinstance(header, Rows) else ReceivedKv(header=header, frames=frames)
            for header, frames in arrivals.take()
        ]

    def _probe(self, arrivals: Arrivals, now: float) -> None:
        """Paths of links whose other end is gone are given up: what they were last told is told again."""
        if now - self._probed_s < PROBE_S:
            return
        self._probed_s = now
        for peer in arrivals.links:
            if not self._credit(peer, self._credited.get(peer, 0)):
                arrivals.close(peer)
        self._credited = {peer: n for peer, n in self._credited.items() if peer in arrivals}


def _rows(header: Rows, data: Buffer) -> Received:
    return Received(header=header, rows=HiddenRows(dtype=header.dtype, shape=header.shape, data=data))
