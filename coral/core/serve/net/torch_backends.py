"""What gloo and NCCL do differently: how a group is made, how an operation is seen to end, how it is aborted.

NCCL was not run: no machine with two of its devices was at hand. What is known of it is its documentation,
and that a stand-in with the same methods is driven as it says.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Protocol

from coral.core.serve.net.communicator import PathBroken
from coral.core.serve.net.torch_store import distributed

FOREVER = timedelta(days=30)
"""No operation ends by the clock: a receiver may be in a long step, and both libraries break a pair for good
when an operation of it has taken too long. Who is gone is told by heartbeats and leases, and then aborted."""
ABORT_S = 5.0
LOOK_S = 0.0002


class Backend(Protocol):
    """One kind of group, on one device of this process."""

    def group(self, store: Any, rank: int) -> Any:
        """A group of two; waits for the other end. Raises RuntimeError where it does not come in time."""
        ...

    def to_device(self, tensor: Any) -> Any: ...

    def finish(self, work: Any, aborted: Callable[[], bool]) -> None:
        """Until the operation has ended. Raises RuntimeError or PathBroken where it has failed."""
        ...

    def abort(self, group: Any, other: int) -> None:
        """Whatever waits on this group fails, here and at rank `other`. Never waits for the other end."""
        ...


class GlooBackend:
    """`host` is the pinned address of this node, which gloo binds and names to the other end.

    Seen with torch 2.13: `is_completed` of a send or receive says nothing before `wait` was called; `wait`
    without a time waits as long as the group was given to be made; `abort` and `shutdown` wake nobody up; a
    `wait` that has timed out closes the pair for good, at both ends, which is what abort is made of here.
    """

    def __init__(self, host: str, patience_s: float) -> None:
        gloo = distributed().ProcessGroupGloo
        self._options = gloo._Options()
        self._options._timeout = timedelta(seconds=patience_s)
        self._options._threads = 1
        self._options._devices = [gloo.create_device(hostname=host)]

    def group(self, store: Any, rank: int) -> Any:
        return distributed().ProcessGroupGloo(store, rank, 2, self._options)

    def to_device(self, tensor: Any) -> Any:
        return tensor

    def finish(self, work: Any, aborted: Callable[[], bool]) -> None:
        work.wait(FOREVER)

    def abort(self, group: Any, other: int) -> None:
        import torch

        with contextlib.suppress(RuntimeError):  # it times out, which is what it is for
            group.recv([torch.empty(1, dtype=torch.uint8)], other, 1).wait(timedelta(milliseconds=1))


class NcclBackend:
    """On one CUDA device (`cuda:0`). Not run. `interface`: that of this node's pinned address.

    An operation has ended when `is_completed` says so; nothing waits in the library. Errors are left to us:
    torch's own handling would end the process. A group is ended by `abort`, in a thread of its own should it
    not return, and kept: its destructor is said to hang where the other end is gone.
    """

    ended: ClassVar[list[Any]] = []
    """Groups that were aborted."""

    def __init__(self, device: str, interface: str, kind: Any = None) -> None:
        self._device = device
        self._kind = kind or distributed().ProcessGroupNCCL
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")

    def group(self, store: Any, rank: int) -> Any:
        options = self._kind.Options()
        options._timeout = FOREVER
        options.config.blocking = 0
        group = self._kind(store, rank, 2, options)
        self._first(group, rank)
        return group

    def to_device(self, tensor: Any) -> Any:
        return tensor.to(self._device)

    def finish(self, work: Any, aborted: Callable[[], bool]) -> None:
        while not work.is_completed():
            if aborted():
                raise PathBroken("aborted")
            time.sleep(LOOK_S)
        fault = work.exception()
        if fault is not None:
            raise PathBroken(f"NCCL: {fault}")

    def abort(self, group: Any, other: int) -> None:
        NcclBackend.ended.append(group)
        thread = threading.Thread(target=group.abort, name="abort", daemon=True)
        thread.start()
        thread.join(ABORT_S)

    def _first(self, group: Any, rank: int) -> None:
        """The constructor connects nobody: the first operation does, so it is done here."""
        import torch

        tensor = self.to_device(torch.zeros(1, dtype=torch.uint8))
        self.finish(group.send([tensor], 1, 0) if rank == 0 else group.recv([tensor], 0, 0), lambda: False)
