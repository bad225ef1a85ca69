"""A coordinator's sockets for tests: on one machine, or as if its instance were on others."""

from __future__ import annotations

import tempfile

import zmq

from coral.core.serve.net.curve import Authenticator, CurveServer
from coral.core.serve.net.keys import KeyPair, ProcessKeys
from coral.core.serve.net.transport import Pull, Router

DOMAIN = "coordinator"


class Listening:
    """By `ipc` in a private folder, or with `network` by TCP on loopback under CURVE."""

    def __init__(self, *, network: bool) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._folder = tempfile.TemporaryDirectory(prefix="coral-sockets-")
        self._made = 0
        self.keys: ProcessKeys | None = None
        """What the instance's processes are given."""
        self._server: CurveServer | None = None
        self._authenticator: Authenticator | None = None
        if network:
            own, plane = KeyPair.new(), KeyPair.new()
            self.keys = ProcessKeys(plane=plane, coordinator=own.public)
            self._server = CurveServer(own, DOMAIN)
            self._authenticator = Authenticator(self.context, {DOMAIN: lambda key: key == plane.public})

    @property
    def sockets(self) -> str:
        return self._folder.name

    @property
    def environment(self) -> dict[str, str]:
        return self.keys.environment() if self.keys is not None else {}

    def router(self) -> Router:
        return Router(self.context, self._address(), keys=self._server)

    def pull(self) -> Pull:
        return Pull(self.context, self._address(), keys=self._server)

    def close(self) -> None:
        """After its sockets."""
        if self._authenticator is not None:
            self._authenticator.close()
        self.context.term()
        self._folder.cleanup()

    def _address(self) -> str:
        self._made += 1
        return "tcp://127.0.0.1:*" if self.keys is not None else f"ipc://{self.sockets}/c{self._made}"
