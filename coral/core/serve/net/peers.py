"""The sending ends within an instance: a connection to each node that this one sends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import zmq

from coral.core.serve.net.address import parted
from coral.core.serve.net.channel import ChannelBroken
from coral.core.serve.net.curve import CurveClient, dial
from coral.core.serve.net.messages.data import Credit, FedToken, Feed, Rows, RowsPart
from coral.core.serve.net.paths import Paths, SendPath, open_path
from coral.core.serve.net.transport import HIGH_WATER, LINGER_MS
from coral.core.serve.net.wire import decode, encode
from coral.errors import ProtocolError
from coral.types.stage import Buffer

WINDOW = 8
"""Messages of rows that a sender may have under way to one receiver."""


class _Peer:
    """What was sent to it, what it has credited."""

    __slots__ = ("answered", "credited", "path", "rows", "sequence", "socket")

    def __init__(self, socket: zmq.Socket[bytes], path: SendPath | None) -> None:
        self.socket = socket
        self.path = path
        self.answered = False
        self.sequence = 0
        self.rows = 0
        self.credited = 0


class Peers:
    """See `coral.core.serve.net.channel.Channel`, whose methods of the same names are these."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        node: str,
        keys: CurveClient | None,
        window: int,
        paths: Paths | None,
    ) -> None:
        self._context = context
        self._node = node
        self._keys = keys
        self._window = window
        self._paths = paths
        self._instance, self._generation = "", 0
        self._all: dict[str, _Peer] = {}
        self.malformed = 0

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [peer.socket for peer in self._all.values()]

    def join(self, instance: str, generation: int) -> None:
        self._instance, self._generation = instance, generation

    def connect(self, peers: Mapping[str, str]) -> None:
        for node, address in peers.items():
            if node in self._all:
                continue
            socket = self._context.socket(zmq.DEALER)
            socket.identity = self._node.encode()
            socket.linger = LINGER_MS
            socket.sndhwm = socket.rcvhwm = HIGH_WATER
            place, paths_address = parted(address)
            dial(socket, place, self._keys)
            path, opening = open_path(
                self._paths, paths_address, self._instance, self._generation, self._node
            )
            socket.send(encode(opening), zmq.NOBLOCK)
            self._all[node] = _Peer(socket, path)

    @property
    def unreached(self) -> list[str]:
        self._look()
        return [
            node
            for node, peer in self._all.items()
            if not peer.answered or (peer.path is not None and not peer.path.ready)
        ]

    def may_send(self) -> bool:
        return all(peer.rows - peer.credited < self._window for peer in self._all.values())

    def send_rows(self, to: str, parts: Sequence[RowsPart], dtype: str, width: int, payload: Buffer) -> None:
        peer = self._all[to]
        if peer.rows - peer.credited >= self._window:
            raise ChannelBroken(f"{self._node} has no credit left at {to}")
        peer.sequence += 1
        peer.rows += 1
        header = Rows(
            instance=self._instance,
            generation=self._generation,
            sender=self._node,
            sequence=peer.sequence,
            dtype=dtype,
            shape=(sum(part.n for part in parts), width),
            parts=tuple(parts),
        )
        if peer.path is None:
            self._send(to, [encode(header), payload])
        else:
            self._send(to, [encode(header)])
            peer.path.put([payload])

    def feed(self, to: str, tokens: Sequence[FedToken]) -> None:
        peer = self._all[to]
        peer.sequence += 1
        header = Feed(
            instance=self._instance,
            generation=self._generation,
            sender=self._node,
            sequence=peer.sequence,
            tokens=tuple(tokens),
        )
        self._send(to, [encode(header)])

    def take_credit(self) -> None:
        """Take in what receivers have credited. Raises ChannelBroken where nothing reaches one any more."""
        self._look()
        for peer in self._all.values():
            while True:
                try:
                    frame = peer.socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    message = decode(frame)
                except ProtocolError:
                    self.malformed += 1
                    continue
                if isinstance(message, Credit) and message.generation == self._generation:
                    peer.answered = True
                    peer.credited = max(peer.credited, message.sequence)
                else:
                    self.malformed += 1

    def close(self) -> None:
        for peer in self._all.values():
            peer.socket.close(linger=LINGER_MS)

    def _look(self) -> None:
        for node, peer in self._all.items():
            if peer.path is not None and peer.path.fault:
                raise ChannelBroken(f"{self._node} cannot send to {node}: {peer.path.fault}")

    def _send(self, to: str, frames: list[Buffer]) -> None:
        try:
            self._all[to].socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again as error:
            raise ChannelBroken(f"{to} takes no more messages from {self._node}") from error
