"""Headers by ZeroMQ, and payloads as further frames of the same message, not copied; or, with `paths`,
by communicators beside them (`gloo`, `nccl`).

Every worker binds a ROUTER and dials its peers with a DEALER under its own name; credit comes back on
the same connection, so a receiver need not know where its senders are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import zmq

from coral.core.serve.net.address import joined, parted
from coral.core.serve.net.arrivals import Arrivals
from coral.core.serve.net.channel import ChannelBroken, Received, ReceivedKv
from coral.core.serve.net.kv_links import KV_WINDOW, KvLinks
from coral.core.serve.net.messages.data import Credit, FedToken, Feed, OpenPath, Rows, RowsPart
from coral.core.serve.net.messages.handover import Kv
from coral.core.serve.net.paths import Paths, SendPath, open_path
from coral.core.serve.net.payload import fault, kv_bytes, kv_fault, rows_bytes
from coral.core.serve.net.transport import HIGH_WATER, LINGER_MS, CurveClient, CurveServer
from coral.core.serve.net.wire import decode, encode
from coral.errors import ProtocolError
from coral.types.stage import Buffer, HiddenRows

WINDOW = 8
"""Messages of rows that a sender may have under way to one receiver."""
LARGEST_ROWS = 1 << 30
"""Bytes of one message; whoever sends a larger one is cut off before it is held."""


class _Outgoing:
    """A connection to one peer: what was sent, what was credited."""

    __slots__ = ("credited", "path", "rows", "sequence", "socket")

    def __init__(self, socket: zmq.Socket[bytes], path: SendPath | None) -> None:
        self.socket = socket
        self.path = path
        self.sequence = 0
        self.rows = 0
        self.credited = 0


class _Incoming:
    """What came of one sender: the last message, and rows not used yet."""

    __slots__ = ("open", "rows", "sequence")

    def __init__(self) -> None:
        self.sequence = 0
        self.rows = 0
        self.open: dict[int, None] = {}


class ZmqChannel:
    """`bind`, for example `tcp://127.0.0.1:*`, is where peers reach this node."""

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
        self._context = context
        self._node = node
        self._window = window
        self._client_keys = client_keys
        self._instance, self._generation = "", 0
        self._router = context.socket(zmq.ROUTER)
        self._router.linger = LINGER_MS
        self._router.sndhwm = self._router.rcvhwm = HIGH_WATER
        self._router.maxmsgsize = LARGEST_ROWS
        if server_keys is not None:
            server_keys.secure(self._router)
        self._router.bind(bind)
        self._senders: Collection[str] | None = None
        self._out: dict[str, _Outgoing] = {}
        self._in: dict[str, _Incoming] = {}
        self._paths = paths
        self._arrivals: Arrivals | None = None if paths is None else Arrivals(paths)
        self._links = KvLinks(context, node=node, keys=client_keys, window=kv_window, paths=paths)
        self.link, self.unlink = self._links.link, self._links.unlink
        self.may_send_to, self.send_kv = self._links.may_send_to, self._links.send_kv
        self.kv_credited = self._links.kv_credited
        self.malformed = 0
        """Messages dropped: not of this instance, of a node that does not send here, or no message at all."""

    @property
    def address(self) -> str:
        socket = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        return joined(socket, self._paths.address if self._paths is not None else "")

    @property
    def sockets(self) -> list[zmq.Socket[bytes] | int]:
        """For a poller: where rows, fed tokens, KV and credit arrive."""
        paths = [] if self._paths is None else [self._paths.fd]
        return [self._router, *(out.socket for out in self._out.values()), *self._links.sockets, *paths]

    def join(self, instance: str, generation: int) -> None:
        """Messages of any other instance or generation are dropped from now on."""
        self._instance, self._generation = instance, generation

    def connect(self, peers: Mapping[str, str], senders: Collection[str] | None = None) -> None:
        self._senders = senders
        for node, address in peers.items():
            if node in self._out:
                continue
            socket = self._context.socket(zmq.DEALER)
            socket.identity = self._node.encode()
            socket.linger = LINGER_MS
            socket.sndhwm = socket.rcvhwm = HIGH_WATER
            if self._client_keys is not None:
                self._client_keys.secure(socket)
            place, paths_address = parted(address)
            socket.connect(place)
            path = None
            if self._paths is not None and self._paths.reach(paths_address):
                path, opening = open_path(
                    self._paths, paths_address, self._instance, self._generation, self._node
                )
                socket.send(encode(opening), zmq.NOBLOCK)
            self._out[node] = _Outgoing(socket, path)

    @property
    def connected(self) -> bool:
        for node, out in self._out.items():
            if out.path is not None and out.path.fault:
                raise ChannelBroken(f"{self._node} cannot send to {node}: {out.path.fault}")
        return all(out.path is None or out.path.ready for out in self._out.values())

    def may_send(self) -> bool:
        return all(out.rows - out.credited < self._window for out in self._out.values())

    def send_rows(self, to: str, parts: Sequence[RowsPart], dtype: str, width: int, payload: Buffer) -> None:
        out = self._out[to]
        if out.rows - out.credited >= self._window:
            raise ChannelBroken(f"{self._node} has no credit left at {to}")
        out.sequence += 1
        out.rows += 1
        header = Rows(
            instance=self._instance,
            generation=self._generation,
            sender=self._node,
            sequence=out.sequence,
            dtype=dtype,
            shape=(sum(part.n for part in parts), width),
            parts=tuple(parts),
        )
        if out.path is None:
            self._send(to, [encode(header), payload])
        else:
            self._send(to, [encode(header)])
            out.path.put([payload])

    def feed(self, to: str, tokens: Sequence[FedToken]) -> None:
        out = self._out[to]
        out.sequence += 1
        header = Feed(
            instance=self._instance,
            generation=self._generation,
            sender=self._node,
            sequence=out.sequence,
            tokens=tuple(tokens),
        )
        self._send(to, [encode(header)])

    def receive(self, limit: int = 1_000) -> list[Received | ReceivedKv]:
        self._take_credit()
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
        if self._arrivals is not None and self.connected:
            received += self._complete(self._arrivals)
        return received

    def done(self, header: Rows | Kv) -> None:
        if isinstance(header, Kv):
            credited = header.sequence
        else:
            incoming = self._in[header.sender]
            incoming.open.pop(header.sequence, None)
            credited = incoming.rows - len(incoming.open)
        credit = Credit(
            instance=self._instance, generation=self._generation, sender=self._node, sequence=credited
        )
        self._router.send_multipart([header.sender.encode(), encode(credit)], zmq.NOBLOCK)

    def close(self) -> None:
        for out in self._out.values():
            out.socket.close(linger=LINGER_MS)
        self._links.close()
        if self._paths is not None:
            self._paths.close()
        self._router.close(linger=LINGER_MS)

    def _send(self, to: str, frames: list[Buffer]) -> None:
        try:
            self._out[to].socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again as error:
            raise ChannelBroken(f"{to} takes no more messages from {self._node}") from error

    def _read(self, frames: Sequence[zmq.Frame]) -> Received | ReceivedKv | None:
        try:
            peer = frames[0].bytes.decode()
            header = decode(frames[1].bytes)
        except (IndexError, UnicodeDecodeError, ProtocolError):
            self.malformed += 1
            return None
        if isinstance(header, Kv):
            return self._read_kv(peer, header, frames[2:])
        if isinstance(header, OpenPath) and self._arrivals is not None and header.sender == peer:
            self._arrivals.open(peer, header.name)
            return None
        payloads = 1 if isinstance(header, Rows) and not self._by_path(peer) else 0
        ours = (
            isinstance(header, Rows | Feed)
            and header.sender == peer
            and (self._senders is None or peer in self._senders)
            and header.instance == self._instance
            and header.generation == self._generation
            and len(frames) == 2 + payloads
        )
        if not ours or not isinstance(header, Rows | Feed):
            self.malformed += 1
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
            self.malformed += 1
        elif by_path and self._arrivals is not None:
            self._arrivals.expect(peer, header, sizes)
        else:
            return ReceivedKv(header=header, frames=payload)
        return None

    def _by_path(self, peer: str) -> bool:
        return self._arrivals is not None and peer in self._arrivals

    def _complete(self, arrivals: Arrivals) -> list[Received | ReceivedKv]:
        """What came by paths. A path of this instance that is broken breaks the channel."""
        for peer, why in arrivals.broken():
            if peer in self._in:
                raise ChannelBroken(f"{self._node} gets nothing more from {peer}: {why}")
        return [
            _rows(header, frames[0]) if isinstance(header, Rows) else ReceivedKv(header=header, frames=frames)
            for header, frames in arrivals.take()
        ]

    def _take_credit(self) -> None:
        for out in self._out.values():
            while True:
                try:
                    frame = out.socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    message = decode(frame)
                except ProtocolError:
                    self.malformed += 1
                    continue
                if isinstance(message, Credit) and message.generation == self._generation:
                    out.credited = max(out.credited, message.sequence)
                else:
                    self.malformed += 1


def _rows(header: Rows, data: Buffer) -> Received:
    return Received(header=header, rows=HiddenRows(dtype=header.dtype, shape=header.shape, data=data))
