"""Reads a request's body, within a size and a time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from coral.errors import RequestError


class ClientLeft(Exception):
    """The client has gone before its request was complete; nobody is there to be told."""


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """Raises RequestError 413 (before anything is read where the header tells) and 408; ClientLeft."""
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if int(announced) > max_bytes:  # the server has checked that it is a number
        raise _too_large(int(announced), max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                body: bytes = message.get("body", b"")
                return _bounded(body, max_bytes)
            parts: list[bytes] = []
            size = 0
            while message["type"] == "http.request":
                part: bytes = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if size > max_bytes:
                    raise _too_large(size, max_bytes)
                if not message.get("more_body", False):
                    return b"".join(parts)
                message = await receive()
            raise ClientLeft
    except TimeoutError as error:
        raise RequestError(
            f"The body did not arrive within {timeout_s:g} s.", status=408, code="request_timeout"
        ) from error


def _bounded(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise _too_large(len(body), max_bytes)
    return body


def _too_large(size: int, max_bytes: int) -> RequestError:
    return RequestError(
        f"The body has {size} bytes or more; the most this server takes is {max_bytes}.",
        status=413,
        code="request_too_large",
    )
