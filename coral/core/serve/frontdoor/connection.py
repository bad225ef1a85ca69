"""One HTTP connection, bounded before there is a request: in number, in the size of a head, in time.

uvicorn leaves these open: a head that never ends grows without bound and takes the event loop longer with
every packet, and a client that never finishes its head keeps its connection for ever.
"""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coral.core.serve.frontdoor.openai.refusal import error_body, error_headers, plain_error
from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.errors import RequestError


def connection_class(options: FrontDoorOptions) -> type[BoundedConnection]:
    """The protocol that uvicorn makes one of per connection."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = options.max_connections
    if files != resource.RLIM_INFINITY:
        most = min(most, files // 2)  # the rest is for the sockets and pipes to our own processes

    class Connection(BoundedConnection):
        max_connections = most
        max_head_bytes = options.max_head_bytes
        head_timeout_s = options.client_timeout_s

    return Connection


class BoundedConnection(HttpToolsProtocol):
    """A head is what comes before a body, or, as trailers, after it."""

    max_connections: int
    max_head_bytes: int
    head_timeout_s: float

    _in_head = True
    """No request, or one whose head is not complete."""
    _head_bytes = 0
    """Received since the last head, piece of a body or request was complete."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            full = f"{self.max_connections} connections are open, the most this server takes."
            self._refuse(RequestError(full, status=503, code="service_unavailable", retry_after_s=1.0))
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self.max_head_bytes:
            self._refuse(
                plain_error(431, f"The request's head has more than {self.max_head_bytes} bytes, the most.")
            )
        elif self._in_head and self._head_bytes and self._head_timer is None:
            self._arm()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._disarm()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(plain_error(400, msg))

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._lapse)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _lapse(self) -> None:
        self._head_timer = None
        if self._answering:  # it is us who do not read on
            self._arm()
        elif self._head_bytes:
            self._refuse(plain_error(408, f"The request's head did not arrive in {self.head_timeout_s:g} s."))
        else:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: RequestError) -> None:
        """Answer and close. In the middle of another answer there is no place for it."""
        if not self._answering and not self.transport.is_closing():
            body = error_body(error)
            lines = [
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode(),
                b"content-type: application/json",
                b"content-length: " + str(len(body)).encode(),
                b"connection: close",
                *(name + b": " + value for name, value in error_headers(error)),
            ]
            self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()
