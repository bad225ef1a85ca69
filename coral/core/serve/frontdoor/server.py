"""Runs the front door under uvicorn, inside an event loop that somebody else owns."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from coral.core.serve.frontdoor.app import FrontDoor
from coral.core.serve.frontdoor.connection import connection_class
from coral.errors import UsageError

USER_TIMEOUT_MS = 60_000


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the coordinator."""
        yield


class HttpServer:
    """A listening front door. `port` is the real one, also where 0 was asked for."""

    def __init__(self, app: FrontDoor, listener: socket.socket, server: _Server) -> None:
        self.app = app
        self.host, self.port = listener.getsockname()[:2]
        self._listener = listener
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=[listener]), name="http")

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def started(self) -> None:
        """Until connections are taken. Raises what the server failed with."""
        while not self._server.started:
            if self._task.done():
                await self._task
                raise UsageError(f"the HTTP server on {self.url} ended while starting")
            await asyncio.sleep(0.005)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Admit nothing more, let open requests finish within `grace_s`, then end the rest and close.

        Requests cut off so are told: an error event in a stream, else 503. May be called twice.
        """
        self.app.drain()
        await self.app.finished(grace_s)
        self._server.should_exit = True
        await self._task
        self._listener.close()


async def serve(app: FrontDoor, host: str, port: int) -> HttpServer:
    """Listen on `host`:`port` (0: any free port) and return once connections are taken.

    Raises UsageError where the address cannot be bound.
    """
    listener = _bind(host, port)
    config = uvicorn.Config(
        app,
        http=connection_class(app.options),
        lifespan="on",
        log_config=None,
        log_level="error",  # a warning is about what a client does, and a client may do it without end
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        ws="none",
    )
    http = HttpServer(app, listener, _Server(config))
    await http.started()
    return http


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"serve.http: {host!r} is no address: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Accepted sockets inherit it: the kernel ends a connection whose client takes nothing, also one
        # that the application has given up while bytes were left to send.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"serve.http: cannot listen on {host}:{port}: {error.strerror}",
            mend="end what holds the port, or choose another (0 takes any free one)",
        ) from error
    return listener
