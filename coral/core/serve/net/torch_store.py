"""The stores on which the two ends of a process group meet. torch's own server listens wherever the machine
has an address; ours listens at the pinned one alone."""

from __future__ import annotations

import ipaddress
import socket
from datetime import timedelta
from importlib import import_module
from typing import Any

WAITING = 128
"""Ends that may dial at once."""


def distributed() -> Any:
    return import_module("torch.distributed")


def listening(host: str) -> socket.socket:
    """A socket that takes connections to this address, on a free port, and to no other."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    taken = socket.socket(family)
    try:
        taken.bind((host, 0))
        taken.listen(WAITING)
    except OSError:
        taken.close()
        raise
    return taken


class ServedStore:
    """A store in this process. `host`: an address of this machine, no name.

    Raises OSError where the address is none of this machine's.
    """

    def __init__(self, host: str, patience_s: float) -> None:
        self._host = host
        self._patience_s = patience_s
        taken = listening(host)
        self._port: int = taken.getsockname()[1]
        # It owns the descriptor from now on.
        self._server = distributed().TCPStore(
            host,
            self._port,
            is_master=True,
            timeout=timedelta(seconds=patience_s),
            wait_for_workers=False,
            master_listen_fd=taken.detach(),
        )

    @property
    def address(self) -> str:
        """`host:port`, with the port that it got."""
        return f"{self._host}:{self._port}"

    def forget(self, name: str) -> None:
        """What the ends of this group wrote for each other is needed no longer."""
        for rank in (0, 1):
            self._server.delete_key(f"{name}/0/{rank}")


def dialled(address: str, name: str, patience_s: float) -> Any:
    """What a group called `name` is made on, at the store of this address. A connection of its own: whoever
    waits on a connection keeps all others from using it.

    Raises RuntimeError (torch's DistError) where the store does not answer in time.
    """
    host, _, port = address.rpartition(":")
    store = distributed().TCPStore(
        host, int(port), is_master=False, timeout=timedelta(seconds=patience_s), wait_for_workers=False
    )
    return distributed().PrefixStore(name, store)
