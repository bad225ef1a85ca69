"""The data plane between workers: a header that says everything, then the payload.

A `Channel` is one worker's end. Headers (`Rows`, `Feed`, `Kv`) tell who sends, how many rows or tokens of
which sequences, their dtype and shape, and a sequence number per sender and receiver, so that a receiver
with several senders never guesses who comes next. How the payload travels is the implementation's; the
headers always go by ZeroMQ. A slow receiver bounds its senders: rows and KV are sent only on credit.

Within an instance every loss breaks the channel, and with it the instance. KV goes over links to nodes of
other instances, which come and go: there a loss concerns the requests alone whose KV was under way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import zmq
from msgspec import Struct

from coral.core.serve.net.messages.data import FedToken, Feed, Rows, RowsPart
from coral.core.serve.net.messages.handover import Kv
from coral.errors import CoralError
from coral.types.stage import Buffer, HiddenRows


class ChannelBroken(CoralError):
    """Something was lost or doubled between two workers: the instance cannot go on."""


class Received(Struct, frozen=True, kw_only=True, eq=False):
    """One message of a peer. `rows` come with a `Rows` header; they are credited when `done` is called."""

    header: Rows | Feed
    rows: HiddenRows | None = None


class ReceivedKv(Struct, frozen=True, kw_only=True, eq=False):
    """KV of a node of another instance; its sender gets credit when `done` is called.

    `frames`: K and then V of each part of the header, in their order; the sizes have been checked.
    """

    header: Kv
    frames: tuple[Buffer, ...]


class Channel(Protocol):
    """One worker's end of the data plane; used by one thread."""

    @property
    def address(self) -> str:
        """Where peers reach this end."""
        ...

    @property
    def sockets(self) -> Sequence[zmq.Socket[bytes] | int]:
        """For a poller: whatever arrives shows on one of these (a socket or a file descriptor), until
        `receive` is called. They change with `connect`, `link` and `unlink`."""
        ...

    def join(self, instance: str, generation: int) -> None:
        """Messages of any other instance or generation are dropped from now on."""
        ...

    def connect(self, peers: Mapping[str, str], senders: Collection[str] | None = None) -> None:
        """Be ready to send to these nodes, by name and address; from now on take what comes of `senders`
        alone (None: of everybody in the instance)."""
        ...

    @property
    def unreached(self) -> Sequence[str]:
        """Peers of `connect` that have not answered yet, or to which payloads do not go through yet. Raises
        ChannelBroken, naming the peer, where that will not come about."""
        ...

    def may_send(self) -> bool:
        """Every peer has credit left for another message of rows."""
        ...

    def send_rows(self, to: str, parts: Sequence[RowsPart], dtype: str, width: int, payload: Buffer) -> None:
        """Send `sum(part.n)` rows `[rows, width]`. The buffer must not change until it is sent.

        Raises ChannelBroken where `to` has no credit left (see `may_send`).
        """
        ...

    def feed(self, to: str, tokens: Sequence[FedToken]) -> None:
        """Tell a stage-0 node what was sampled; needs no credit."""
        ...

    def link(self, peers: Mapping[str, str]) -> None:
        """Be ready to send KV to these nodes of other instances, by name and address; nothing waits for
        them. A node that is linked at another address is linked anew."""
        ...

    def unlink(self, node: str) -> None:
        """Cut a link with whatever is under way on it; its buffers are needed no longer. An unknown one is
        ignored."""
        ...

    def may_send_to(self, node: str) -> bool:
        """This node is linked and has credit left for another message of KV."""
        ...

    def link_fault(self, node: str) -> str:
        """Why no KV will reach this node any more; empty where that is not known. Raises KeyError where it is
        not linked."""
        ...

    def send_kv(self, to: str, header: Kv, frames: Sequence[Buffer]) -> int:
        """Send K and V of each part of the header; `sender` and `sequence` are set here. The number of the
        message on its link: the buffers must not change until it is credited or the link is cut.

        Raises ValueError where `to` has no credit left (see `may_send_to`), KeyError where it is not linked.
        """
        ...

    def kv_credited(self, to: str) -> int:
        """The number of the last message of KV that this receiver has credited; 0 = none.

        Raises KeyError where it is not linked.
        """
        ...

    def receive(self, limit: int = 1_000) -> list[Received | ReceivedKv]:
        """What has arrived, in each sender's order; never waits. Credit is taken in as well.

        Raises ChannelBroken where a sender's message is missing or doubled.
        """
        ...

    def done(self, header: Rows | Kv) -> None:
        """All of this message was used or dropped: its sender gets credit."""
        ...

    def close(self) -> None: ...
