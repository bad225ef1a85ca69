"""Tokens of the last stage, and the headers (first frames) of the data plane between workers."""

from __future__ import annotations

from msgspec import Struct

from coral.core.serve.net.messages.base import Message
from coral.types.request import Token


class Tokens(Message, frozen=True, kw_only=True, tag="tokens"):
    """All tokens of one engine step; the same message goes to the coordinator and to the scheduler.

    `attempt` grows within an instance with every start of a sequence there and says nothing across
    instances. After a preemption a request may go on at another node, whose first tokens can reach
    the coordinator before the last ones of the node before: order and doubles are told by `position`.
    """

    instance: str
    node: str
    tokens: tuple[Token, ...]


class RowsPart(Struct, frozen=True, kw_only=True, array_like=True):
    request: str
    attempt: int
    start: int
    n: int


class Rows(Message, frozen=True, kw_only=True, tag="rows"):
    """Hidden rows of several requests; the payload holds their rows in the order of `parts`."""

    instance: str
    generation: int
    sender: str
    sequence: int
    dtype: str
    shape: tuple[int, int]
    parts: tuple[RowsPart, ...]


class FedToken(Struct, frozen=True, kw_only=True, array_like=True):
    request: str
    attempt: int
    position: int
    token: int


class Feed(Message, frozen=True, kw_only=True, tag="feed"):
    """Tokens sampled by the last stage, for stage 0. No payload."""

    instance: str
    generation: int
    sender: str
    sequence: int
    tokens: tuple[FedToken, ...]


class OpenPath(Message, frozen=True, kw_only=True, tag="open-path"):
    """The payloads of what follows on this connection go over a communicator of this name."""

    instance: str
    generation: int
    sender: str
    name: str


class Credit(Message, frozen=True, kw_only=True, tag="credit"):
    """`sender`, who receives rows, has used or dropped `sequence` messages of rows of this peer so far.

    On a link between instances: it has taken all messages of KV up to number `sequence`.
    """

    instance: str
    generation: int
    sender: str
    sequence: int
