"""Refusals in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from msgspec import Struct
from starlette.types import Send

from coral.errors import RequestError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorDetail(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


def error_body(error: RequestError) -> bytes:
    """The JSON of a refusal, as a whole answer or as the data of an SSE event."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    text = error.message if error.mend is None else f"{error.message} {error.mend}"
    return msgspec.json.encode(ErrorBody(ErrorDetail(text, kind, error.param, error.code)))


def error_headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    """Headers beside type and length: `Retry-After` in whole seconds, at least 1."""
    if error.retry_after_s is None:
        return []
    return [(b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode())]


def plain_error(status: int, message: str = "") -> RequestError:
    """A refusal where nothing but the status is known (404 and 405 of unknown routes)."""
    phrase = HTTPStatus(status).phrase
    return RequestError(message or phrase, status=status, code=phrase.lower().replace(" ", "_"))


async def send_json(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """One whole JSON answer."""
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head + (headers or [])})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: RequestError, *, close: bool = False) -> None:
    """Refuse. `close`: the connection cannot be used again (the rest of its body will not come).

    A body that is only too large is better left to the server to read and forget: closing on a client that
    still sends resets the connection, and the refusal is lost with it.
    """
    headers = error_headers(error)
    if close:
        headers.append((b"connection", b"close"))
    await send_json(send, error.status, error_body(error), headers)
