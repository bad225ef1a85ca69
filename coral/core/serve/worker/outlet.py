"""Where a stage's results go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from coral.core.serve.net.messages.base import Message
from coral.core.serve.net.messages.data import FedToken, Rows, RowsPart
from coral.types.request import Token
from coral.types.stage import Buffer


class Outlet(Protocol):
    """The worker's sockets, as a stage sees them."""

    def rows(self, to: str, parts: Sequence[RowsPart], dtype: str, width: int, payload: Buffer) -> None:
        """Hidden rows for a node of the next stage."""
        ...

    def tokens(self, tokens: Sequence[Token]) -> None:
        """What this step sampled, for scheduler and coordinator."""
        ...

    def feed(self, to: str, tokens: Sequence[FedToken]) -> None:
        """What this step sampled, for a node of stage 0."""
        ...

    def say(self, message: Message) -> None:
        """To the scheduler."""
        ...

    def used(self, header: Rows) -> None:
        """All rows of a received message were used or dropped."""
        ...
