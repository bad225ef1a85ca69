"""The data plane between workers: a header that says everything, then the payload.

A `Channel` is one worker's end. Headers (`Rows`, `Feed`) tell who sends, how many rows of which
sequences, their dtype and shape, and a sequence number per sender and receiver, so that a receiver with
several senders never guesses who comes next. How the payload travels is the implementation's; the
headers always go by ZeroMQ. A slow receiver bounds its senders: rows are sent only on credit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import zmq
from msgspec import Struct

from coral.core.serve.net.messages.data import FedToken, Feed, Rows, RowsPart
from coral.errors import CoralError
from coral.types.stage import Buffer, HiddenRows

ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint8": 1,
    "float8": 1,
}


class ChannelBroken(CoralError):
    """Something was lost or doubled between two workers: the instance cannot go on."""


class Received(Struct, frozen=True, kw_only=True, eq=False):
    """One message of a peer. `rows` come with a `Rows` header; they are credited when `done` is called."""

    header: Rows | Feed
    rows: HiddenRows | None = None


class Channel(Protocol):
    """One worker's end of the data plane; used by one thread."""

    @property
    def address(self) -> str:
        """Where peers reach this end."""
        ...

    @property
    def sockets(self) -> Sequence[zmq.Socket[bytes]]:
        """For a poller: whatever arrives shows on one of these, until `receive` is called."""
        ...

    def join(self, instance: str, generation: int) -> None:
        """Messages of any other instance or generation are dropped from now on."""
        ...

    def connect(self, peers: Mapping[str, str], senders: Collection[str] | None = None) -> None:
        """Be ready to send to these nodes, by name and address; from now on take what comes of `senders`
        alone (None: of everybody in the instance)."""
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

    def receive(self, limit: int = 1_000) -> list[Received]:
        """What has arrived, in each sender's order; never waits. Credit is taken in as well.

        Raises ChannelBroken where a sender's message is missing or doubled.
        """
        ...

    def done(self, header: Rows) -> None:
        """All rows of this message were used or dropped: its sender gets credit."""
        ...

    def close(self) -> None: ...


def fault(header: Rows, payload_bytes: int) -> str | None:
    """What is wrong with a message of rows, or None."""
    rows, width = header.shape
    size = ITEM_BYTES.get(header.dtype)
    if size is None:
        return f"unknown dtype {header.dtype!r}"
    if rows < 1 or width < 1 or rows * width * size != payload_bytes:
        return f"{payload_bytes} bytes are not {rows}×{width} of {header.dtype}"
    if any(part.n < 1 or part.start < 0 for part in header.parts):
        return "a part without rows"
    if sum(part.n for part in header.parts) != rows:
        return f"parts of {sum(part.n for part in header.parts)} rows, not {rows}"
    return None
