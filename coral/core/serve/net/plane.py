"""How the schedulers and workers of one model speak to each other and to the coordinator, and nobody else."""

from __future__ import annotations

import zmq

from coral.core.serve.net.curve import Authenticator, CurveClient, CurveServer
from coral.core.serve.net.keys import ProcessKeys

DOMAIN = "plane"


class Plane:
    """The sockets' keys of one scheduler or worker; without `keys` it uses `ipc` alone, in `sockets`.

    `host` is its machine's pinned address, where other machines reach it.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: ProcessKeys | None, *, host: str, sockets: str
    ) -> None:
        self._keys = keys
        self._host = f"[{host}]" if ":" in host else host
        self._sockets = sockets
        self._authenticator = None
        if keys is not None:
            public = keys.plane.public
            self._authenticator = Authenticator(context, {DOMAIN: lambda key: key == public})

    def address(self, name: str) -> str:
        """What to bind; `name` is unique on this machine."""
        return f"ipc://{self._sockets}/{name}" if self._keys is None else f"tcp://{self._host}:*"

    @property
    def server(self) -> CurveServer | None:
        return CurveServer(self._keys.plane, DOMAIN) if self._keys is not None else None

    @property
    def client(self) -> CurveClient | None:
        """To those of the same model."""
        return CurveClient(self._keys.plane, self._keys.plane.public) if self._keys is not None else None

    @property
    def coordinator(self) -> CurveClient | None:
        return CurveClient(self._keys.plane, self._keys.coordinator) if self._keys is not None else None

    @property
    def ticket(self) -> str:
        return self._keys.ticket if self._keys is not None else ""

    def close(self) -> None:
        """After all sockets of the context."""
        if self._authenticator is not None:
            self._authenticator.close()
