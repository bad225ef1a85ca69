"""Communicators of torch: gloo over host memory, NCCL over CUDA devices (`torch_backends`).

Each is a process group of two, built on a store that the receiver's process serves, never the default
group; a new pair is a new group under a new name, so that pairs come and go without the others. Both are
plaintext: they are for one machine, or for a network that is trusted. torch is imported by the makers
alone: they are used in workers whose engine brings it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from coral.core.serve.net.communicator import PathBroken
from coral.core.serve.net.routable import interface_of
from coral.core.serve.net.torch_backends import Backend, GlooBackend, NcclBackend
from coral.core.serve.net.torch_store import ServedStore, dialled
from coral.errors import CoralError
from coral.types.stage import Buffer

PATIENCE_S = 60.0
"""How long an end waits for the other to appear."""


class TorchCommunicator:
    """One end of a group of two: rank 0 sends, rank 1 receives."""

    def __init__(self, group: Any, backend: Backend, rank: int, forget: Callable[[], None]) -> None:
        self._group = group
        self._backend = backend
        self._other = 1 - rank
        self._forget = forget
        self._aborted = False
        self._posting = threading.Lock()

    def send(self, data: Buffer) -> None:
        import torch

        view = memoryview(data).cast("B")
        if view.readonly:
            view = memoryview(bytearray(view))
        tensor = self._backend.to_device(torch.frombuffer(view, dtype=torch.uint8))
        self._do(lambda: self._group.send([tensor], self._other, 0))

    def recv(self, nbytes: int) -> Buffer:
        import torch

        tensor = self._backend.to_device(torch.empty(nbytes, dtype=torch.uint8))
        self._do(lambda: self._group.recv([tensor], self._other, 0))
        return tensor.cpu().numpy()

    def abort(self) -> None:
        with self._posting:
            if self._aborted:
                return
            self._aborted = True
        self._backend.abort(self._group, self._other)
        self._forget()

    def _do(self, post: Callable[[], Any]) -> None:
        try:
            with self._posting:
                if self._aborted:
                    raise PathBroken("aborted")
                work = post()
            self._backend.finish(work, lambda: self._aborted)
        except RuntimeError as error:
            raise PathBroken(_first_line(error)) from error
        if self._aborted:
            raise PathBroken("aborted")


class TorchMaker:
    """`coral.core.serve.net.communicator.Maker` over a store at `host` on a free port."""

    def __init__(self, kind: str, host: str, backend: Backend, patience_s: float = PATIENCE_S) -> None:
        self._kind = kind
        self._backend = backend
        self._patience_s = patience_s
        self._store = ServedStore(host, patience_s)

    @property
    def address(self) -> str:
        return f"{self._kind}@{self._store.address}"

    def sender(self, name: str, address: str) -> TorchCommunicator:
        return self._made(name, 0, address.partition("@")[2], lambda: None)

    def receiver(self, name: str) -> TorchCommunicator:
        return self._made(name, 1, self._store.address, lambda: self._store.forget(name))

    def close(self) -> None:
        pass  # the store ends with the process: others may still be about to hear that it is gone

    def _made(self, name: str, rank: int, place: str, forget: Callable[[], None]) -> TorchCommunicator:
        try:
            store = dialled(place, name, self._patience_s)
            return TorchCommunicator(self._backend.group(store, rank), self._backend, rank, forget)
        except (RuntimeError, ValueError) as error:
            raise PathBroken(f"no group {name} at {place}: {_first_line(error)}") from error


def maker(kind: str, host: str) -> TorchMaker:
    """`gloo` or `nccl`, for this process, at its pinned address. Raises CoralError where this process has not
    what it needs."""
    try:
        import torch
    except ImportError as error:
        raise CoralError(
            f"the channel {kind} needs torch, which this environment has not: {error}",
            mend="install torch where the engine runs, or `serve: {channel: zmq}`",
        ) from error
    if kind == "gloo":
        return TorchMaker(kind, host, GlooBackend(host, PATIENCE_S))
    if not torch.distributed.is_nccl_available() or not torch.cuda.is_available():
        raise CoralError(
            "the channel nccl needs a CUDA device and a torch that was built with NCCL",
            mend="`serve: {channel: auto}` takes nccl only where there are both",
        )
    return TorchMaker(kind, host, NcclBackend("cuda:0", interface_of(host)))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
