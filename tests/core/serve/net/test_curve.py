"""Keys, and who may speak on a socket."""

from __future__ import annotations

import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from coral.core.serve.net.curve import Authenticator, CurveClient, CurveServer, bind, dial
from coral.core.serve.net.keys import COORDINATOR_KEY, PLANE_KEY, KeyPair, ProcessKeys
from coral.core.serve.net.transport import Dealer, Router
from coral.core.serve.net.wire import AskStats
from coral.errors import ProtocolError

Context = zmq.Context[zmq.Socket[bytes]]
ANY_PORT = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


@pytest.mark.parametrize("address", [ANY_PORT, "tcp://[::1]:*", "tcp://0.0.0.0:*"])
def test_no_tcp_socket_without_keys(context: Context, address: str) -> None:
    with context.socket(zmq.ROUTER) as socket:
        with pytest.raises(ProtocolError, match="not bound without keys"):
            bind(socket, address, None)
        with pytest.raises(ProtocolError, match="not dialled without keys"):
            dial(socket, address.replace("*", "1"), None)
        assert not socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0")  # type: ignore[union-attr]


@pytest.mark.parametrize("address", ["udp://127.0.0.1:5", "ws://127.0.0.1:5", "pgm://x", "127.0.0.1:5", ""])
def test_no_other_transports(context: Context, address: str) -> None:
    with context.socket(zmq.ROUTER) as socket:
        with pytest.raises(ProtocolError, match="not an address of ours"):
            bind(socket, address, None)
        with pytest.raises(ProtocolError, match="not an address of ours"):
            dial(socket, address, None)


@pytest.mark.parametrize("address", ["tcp://", "tcp://nowhere:port", "tcp://a b:1"])
def test_what_a_peer_calls_an_address_may_be_none(context: Context, address: str) -> None:
    own = KeyPair.new()
    with context.socket(zmq.DEALER) as socket, pytest.raises(ProtocolError, match="cannot be dialled"):
        dial(socket, address, CurveClient(own, own.public))


class Server:
    """A ROUTER on TCP, and whoever may speak to it."""

    def __init__(self, context: Context, *, authenticated: bool = True) -> None:
        self.pair = KeyPair.new()
        self.allowed: set[str] = set()
        self.context = context
        self.authenticator = None
        if authenticated:
            self.authenticator = Authenticator(context, {"here": self.allowed.__contains__})
        self.router = Router(context, ANY_PORT, keys=CurveServer(self.pair, "here"))

    def hears(self, within_s: float) -> int:
        """Messages that come within that time; returns at the first."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if found := self.router.drain():
                return len(found)
            time.sleep(0.01)
        return 0

    def close(self) -> None:
        self.router.close(linger_ms=0)
        if self.authenticator is not None:
            self.authenticator.close()


@pytest.fixture
def server(context: Context) -> Iterator[Server]:
    one = Server(context)
    yield one
    one.close()


def says_something(server: Server, keys: CurveClient, within_s: float) -> int:
    with zmq.Context() as elsewhere:
        dealer = Dealer(elsewhere, server.router.address, identity="peer", keys=keys)
        try:
            dealer.send(AskStats())
            return server.hears(within_s)
        finally:
            dealer.close(linger_ms=0)


def test_only_those_on_the_list_are_heard(server: Server) -> None:
    friend, stranger, other = KeyPair.new(), KeyPair.new(), KeyPair.new()
    server.allowed.add(friend.public)
    assert says_something(server, CurveClient(stranger, server.pair.public), 0.7) == 0
    assert says_something(server, CurveClient(friend, other.public), 0.7) == 0, "to another server"
    assert (
        says_something(server, CurveClient(KeyPair(friend.public, other.secret), server.pair.public), 0.7)
        == 0
    )
    assert says_something(server, CurveClient(friend, server.pair.public), 10) == 1


def test_without_keys_nobody_is_heard_or_told_anything(server: Server) -> None:
    server.allowed.add(KeyPair.new().public)
    with zmq.Context() as elsewhere, elsewhere.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.identity = b"peer"
        plain.connect(server.router.address)
        plain.send(b"\x01hello")
        assert server.hears(0.7) == 0
        assert plain.poll(0) == 0


def test_where_nobody_is_asked_nobody_gets_in(context: Context) -> None:
    """libzmq lets everybody in where there is no authenticator; ours says that there must be one."""
    server = Server(context, authenticated=False)
    friend = KeyPair.new()
    assert says_something(server, CurveClient(friend, server.pair.public), 0.7) == 0
    server.close()


def test_a_connection_that_shows_no_key_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coral.core.serve.net.curve.HANDSHAKE_MS", 300)
    with server.context.socket(zmq.ROUTER) as socket:
        bind(socket, ANY_PORT, CurveServer(server.pair, "here"))
        host, _, port = socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://").partition(":")
        with sockets.create_connection((host, int(port)), timeout=10) as raw:
            while raw.recv(1000):  # its greeting, and then the end
                pass


def test_a_damaged_secret_is_named_as_such() -> None:
    for text in ("", "short", "\u00e9" * 40, "~" * 40):
        with pytest.raises(ProtocolError, match="damaged"):
            KeyPair.of_secret(text)
    pair = KeyPair.new()
    assert KeyPair.of_secret(pair.secret) == pair


def test_a_secret_is_not_printed() -> None:
    keys = ProcessKeys(plane=KeyPair.new(), coordinator=KeyPair.new().public)
    assert keys.plane.secret not in f"{keys} {keys!r} {keys.plane} {CurveServer(keys.plane, 'x')!r}"


def test_a_process_takes_its_keys_out_of_its_environment(tmp_path: Path) -> None:
    keys = ProcessKeys(plane=KeyPair.new(), coordinator=KeyPair.new().public)
    environment = {"HOME": str(tmp_path), **keys.environment()}
    assert {PLANE_KEY, COORDINATOR_KEY} < set(environment)
    assert ProcessKeys.taken(environment) == keys
    assert environment == {"HOME": str(tmp_path)}
    assert ProcessKeys.taken(environment) is None
