"""Communicators of torch: gloo over host memory, NCCL over CUDA devices.

Each is a process group of two, built on a store that the receiver's process serves, never the default
group; a new pair is a new group under a new name, so that pairs come and go without the others. Both are
plaintext: they are for one machine, or for a network that is trusted. torch is imported by the makers
alone: they are used in workers whose engine brings it.

NCCL was not run: no machine with it was at hand. It is built the same way, ended by abort, never by destroy.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any, Protocol

from coral.core.serve.net.communicator import PathBroken
from coral.types.stage import Buffer

PATIENCE_S = 60.0
"""How long an end waits for the other to appear, or for bytes whose header has come."""


class TorchCommunicator:
    """One end of a group of two: rank 0 sends, rank 1 receives."""

    def __init__(self, group: Any, to_device: Callable[[Any], Any], finish: Callable[[Any], None]) -> None:
        self._group = group
        self._to_device = to_device
        self._finish = finish
        self._aborted = False

    def send(self, data: Buffer) -> None:
        import torch

        view = memoryview(data).cast("B")
        if view.readonly:
            view = memoryview(bytearray(view))
        tensor = self._to_device(torch.frombuffer(view, dtype=torch.uint8))
        self._do(lambda: self._group.send([tensor], 1, 0))

    def recv(self, nbytes: int) -> Buffer:
        import torch

        tensor = self._to_device(torch.empty(nbytes, dtype=torch.uint8))
        self._do(lambda: self._group.recv([tensor], 0, 0))
        return tensor.cpu().numpy()

    def abort(self) -> None:
        self._aborted = True
        self._group.abort()

    def _do(self, post: Callable[[], Any]) -> None:
        if self._aborted:
            raise PathBroken("aborted")
        try:
            self._finish(post())
        except RuntimeError as error:
            raise PathBroken(str(error).partition("\n")[0]) from error


class _Backend(Protocol):
    def group(self, store: Any, rank: int) -> TorchCommunicator: ...


class GlooBackend:
    """`host` is the pinned address of this node, which gloo binds and names to the other end."""

    def __init__(self, host: str) -> None:
        self._host = host

    def group(self, store: Any, rank: int) -> TorchCommunicator:
        gloo = _distributed().ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=PATIENCE_S)
        options._threads = 1
        options._devices = [gloo.create_device(hostname=self._host)]
        group = gloo(store, rank, 2, options)
        return TorchCommunicator(group, lambda tensor: tensor, lambda work: work.wait())


class NcclBackend:
    """On one CUDA device. Not run."""

    def __init__(self, device: int) -> None:
        self._device = device

    def group(self, store: Any, rank: int) -> TorchCommunicator:
        import torch

        nccl = _distributed().ProcessGroupNCCL
        device = torch.device("cuda", self._device)
        options = nccl.Options()
        options._timeout = timedelta(seconds=PATIENCE_S)
        options.config.blocking = 0
        group = nccl(store, rank, 2, options)

        def finish(work: Any) -> None:
            work.wait()
            torch.cuda.current_stream(device).synchronize()

        return TorchCommunicator(group, lambda tensor: tensor.to(device), finish)


class TorchMaker:
    """`coral.core.serve.net.communicator.Maker` over a store at `host` on a free port."""

    def __init__(self, kind: str, host: str, backend: _Backend) -> None:
        self._kind = kind
        self._backend = backend
        self._host = host
        self._store: Any = _distributed().TCPStore(
            host, 0, None, True, timeout=timedelta(seconds=PATIENCE_S), wait_for_workers=False
        )

    @property
    def address(self) -> str:
        return f"{self._kind}@{self._host}:{self._store.port}"

    def sender(self, name: str, address: str) -> TorchCommunicator:
        host, _, port = address.partition("@")[2].rpartition(":")

        def store() -> Any:
            patience = timedelta(seconds=PATIENCE_S)
            return _distributed().TCPStore(host, int(port), None, False, patience)

        return self._made(name, 0, store)

    def receiver(self, name: str) -> TorchCommunicator:
        return self._made(name, 1, lambda: self._store)

    def close(self) -> None:
        self._store = None

    def _made(self, name: str, rank: int, store: Callable[[], Any]) -> TorchCommunicator:
        try:
            return self._backend.group(_distributed().PrefixStore(name, store()), rank)
        except (RuntimeError, ValueError) as error:
            raise PathBroken(f"no group {name}: {str(error).partition(chr(10))[0]}") from error


def _distributed() -> Any:
    return import_module("torch.distributed")


def maker(kind: str, host: str) -> TorchMaker:
    """`gloo` or `nccl`, for this process."""
    return TorchMaker(kind, host, GlooBackend(host) if kind == "gloo" else NcclBackend(0))
