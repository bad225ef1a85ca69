"""The sending end of KV between instances: a connection to each receiving node, dialled when it is wanted.

A link is a DEALER of its own name (`node#3`), never used twice, so that a link made anew is a new peer to
its receiver. Whatever happens to a link concerns the requests whose KV goes over it, never the instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
import zmq

from coral.core.serve.net.address import parted
from coral.core.serve.net.curve import CurveClient, dial
from coral.core.serve.net.messages.data import Credit
from coral.core.serve.net.messages.handover import Kv
from coral.core.serve.net.paths import Paths, SendPath, open_path
from coral.core.serve.net.transport import LINGER_MS
from coral.core.serve.net.wire import decode, encode
from coral.errors import ProtocolError
from coral.types.stage import Buffer

KV_WINDOW = 4
"""Messages of KV that a sender may have under way to one receiver."""


class _Link:
    __slots__ = ("address", "credited", "name", "path", "sent", "socket")

    def __init__(self, socket: zmq.Socket[bytes], name: str, address: str, path: SendPath | None) -> None:
        self.path = path
        self.socket = socket
        self.name = name
        self.address = address
        self.sent = 0
        self.credited = 0


class KvLinks:
    """See `coral.core.serve.net.channel.Channel`, whose methods of the same names are these."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        node: str,
        keys: CurveClient | None = None,
        window: int = KV_WINDOW,
        paths: Paths | None = None,
    ) -> None:
        self._context = context
        self._paths = paths
        self._node = node
        self._keys = keys
        self._window = window
        self._links: dict[str, _Link] = {}
        self._numbers = count(1)
        self.malformed = 0

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [link.socket for link in self._links.values()]

    def link(self, peers: Mapping[str, str]) -> None:
        for node, address in peers.items():
            known = self._links.get(node)
            if known is not None:
                if known.address == address:
                    continue
                self.unlink(node)
            name = f"{self._node}#{next(self._numbers)}"
            socket = self._context.socket(zmq.DEALER)
            socket.identity = name.encode()
            socket.linger = LINGER_MS
            place, paths_address = parted(address)
            dial(socket, place, self._keys)
            path, opening = open_path(self._paths, paths_address, "", 0, name)
            if path is not None:
                socket.send(encode(opening), zmq.NOBLOCK)
            self._links[node] = _Link(socket, name, address, path)

    def unlink(self, node: str) -> None:
        link = self._links.pop(node, None)
        if link is not None:
            link.socket.close(linger=0)
            if self._paths is not None and link.path is not None:
                self._paths.drop(link.path)

    def may_send_to(self, node: str) -> bool:
        link = self._links.get(node)
        if link is None or (link.path is not None and not link.path.ready):
            return False
        return link.sent - link.credited < self._window

    def link_fault(self, node: str) -> str:
        link = self._links[node]
        return "" if link.path is None else link.path.fault

    def send_kv(self, to: str, header: Kv, frames: Sequence[Buffer]) -> int:
        link = self._links[to]
        if not self.may_send_to(to):
            raise ValueError(f"{self._node} has no credit left at {to}")
        link.sent += 1
        named = msgspec.structs.replace(header, sender=link.name, sequence=link.sent)
        # The window is far below the socket's high-water mark: it always takes the message.
        attached = frames if link.path is None else ()
        link.socket.send_multipart([encode(named), *attached], zmq.NOBLOCK, copy=False)
        if link.path is not None:
            link.path.put(frames)
        return link.sent

    def kv_credited(self, to: str) -> int:
        return self._links[to].credited

    def take_credit(self) -> None:
        """Take in what receivers have credited."""
        for link in self._links.values():
            while True:
                try:
                    frame = link.socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    message = decode(frame)
                except ProtocolError:
                    self.malformed += 1
                    continue
                if isinstance(message, Credit) and link.credited <= message.sequence <= link.sent:
                    link.credited = message.sequence
                else:
                    self.malformed += 1

    def close(self) -> None:
        for link in self._links.values():
            link.socket.close(linger=LINGER_MS)
        self._links.clear()
