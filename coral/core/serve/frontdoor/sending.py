"""Calling an ASGI `send` without a task: as far as it goes at once, the rest for whoever can wait."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

from starlette.types import Message, Send


class Unsent:
    """A `send` that had to wait, for room in the client's buffer. Await it, once, in a task."""

    def __init__(self, steps: Generator[Any, Any, Any], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        value: Any = None
        failure: BaseException | None
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                failure = error
            else:
                failure = None
            try:
                waits_for = self._steps.send(value) if failure is None else self._steps.throw(failure)
            except StopIteration:
                return


def send_now(send: Send, message: Message) -> Unsent | None:
    """Send in the caller's own turn. None: it is done; else the rest is to be awaited.

    ASGI servers hand a write to their transport without waiting unless the client is slow, so that nearly
    every call ends here: no task is woken for it. `send` may raise OSError where the client is gone.
    """
    sending: Awaitable[None] = send(message)
    steps = sending.__await__()
    try:
        waits_for = next(steps)
    except StopIteration:
        return None
    return Unsent(steps, waits_for)
