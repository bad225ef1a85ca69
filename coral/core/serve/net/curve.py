"""Who may speak on a socket: every TCP socket has CURVE, on loopback too; `ipc` lies in a private folder.

`bind` and `dial` are the only ways by which sockets of ours get an address. A binding TCP socket needs an
`Authenticator` in its context: where there is none, nobody gets in (`ZAP_ENFORCE_DOMAIN`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from coral.core.serve.net.keys import KeyPair
from coral.errors import ProtocolError

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

HANDSHAKE_MS = 10_000
"""A connection that has not shown its key within this time is closed."""
Allowed = Callable[[str], bool]
"""Whether a public key (Z85) may speak. Called in the authenticator's thread; must not raise."""


@dataclass(frozen=True, slots=True)
class CurveServer:
    """Keys of a binding socket; who may dial it is what the context's authenticator says of `domain`."""

    pair: KeyPair
    domain: str


@dataclass(frozen=True, slots=True)
class CurveClient:
    """Keys of a dialling socket; `server` is the public key (Z85) of who must be there."""

    pair: KeyPair
    server: str


def bind(socket: zmq.Socket[bytes], address: str, keys: CurveServer | None) -> None:
    """Raises ProtocolError where a TCP address would be bound without keys."""
    if not _tcp(socket, address):
        socket.bind(address)
        return
    if keys is None:
        raise ProtocolError(f"{address} is not bound without keys")
    socket.curve_server = True
    socket.curve_publickey = keys.pair.public.encode()
    socket.curve_secretkey = keys.pair.secret.encode()
    socket.zap_domain = keys.domain.encode()
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.handshake_ivl = HANDSHAKE_MS
    socket.bind(address)


def dial(socket: zmq.Socket[bytes], address: str, keys: CurveClient | None) -> None:
    """Raises ProtocolError where a TCP address would be dialled without keys, or is none."""
    if _tcp(socket, address):
        if keys is None:
            raise ProtocolError(f"{address} is not dialled without keys")
        socket.curve_serverkey = keys.server.encode()
        socket.curve_publickey = keys.pair.public.encode()
        socket.curve_secretkey = keys.pair.secret.encode()
        socket.handshake_ivl = HANDSHAKE_MS
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise ProtocolError(f"{address[:200]!r} cannot be dialled: {error}") from error


def _tcp(socket: zmq.Socket[bytes], address: str) -> bool:
    """Whether it needs keys. Raises ProtocolError for transports that we do not use."""
    transport = address.partition("://")[0]
    if transport in ("ipc", "inproc"):
        return False
    if transport != "tcp":
        raise ProtocolError(f"not an address of ours: {address[:200]!r}")
    socket.ipv6 = address.startswith("tcp://[")
    return True


class Authenticator:
    """Asks `domains` about everyone who dials a TCP socket of this context. Made before the first of them
    is bound, closed after the last."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], domains: Mapping[str, Allowed]) -> None:
        from zmq.auth.thread import ThreadAuthenticator

        self._thread: ThreadAuthenticator = ThreadAuthenticator(context)
        for domain, allowed in domains.items():
            self._thread.configure_curve_callback(domain, _Asks(allowed))
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()


class _Asks:
    """A credentials provider as pyzmq wants it."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed

    def callback(self, _domain: str, key: bytes) -> bool:
        return self._allowed(key.decode())
