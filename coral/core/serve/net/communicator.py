"""Pairwise communicators: what carries payloads beside the headers where ZeroMQ does not.

A communicator joins one sender and one receiver. It knows nothing of messages: the receiver must ask for
as many bytes as come next, in the order in which they were sent, which it knows by the headers. That is
all that NCCL and gloo promise, and all that is relied on.
"""

from __future__ import annotations

from typing import Protocol

from coral.errors import CoralError
from coral.types.stage import Buffer


class PathBroken(CoralError):
    """The other end is gone, does not answer, or the communicator was aborted."""


class Communicator(Protocol):
    """One end. `send` and `recv` are called by one thread, `abort` by any."""

    def send(self, data: Buffer) -> None:
        """Returns when the buffer may be used again. Raises PathBroken."""
        ...

    def recv(self, nbytes: int) -> Buffer:
        """The next `nbytes` bytes, which were sent as one buffer. Raises PathBroken."""
        ...

    def abort(self) -> None:
        """Whoever waits raises PathBroken; nothing goes through any more. Never waits for the other end."""
        ...


class Maker(Protocol):
    """Makes communicators of one kind for one process."""

    @property
    def address(self) -> str:
        """Where senders meet this process to make one: `kind@place`."""
        ...

    def sender(self, name: str, address: str) -> Communicator:
        """The sending end to the process at `address`; waits for the other end, which is made under the
        same name. Raises PathBroken where it does not come in time."""
        ...

    def receiver(self, name: str) -> Communicator:
        """The receiving end of this name. Raises PathBroken."""
        ...

    def close(self) -> None: ...
