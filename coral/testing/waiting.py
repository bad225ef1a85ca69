"""Bounded waiting for something to become true: no test waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_S = 0.02


def wait_until(condition: Callable[[], object], within_s: float, what: str = "it") -> float:
    """Seconds until `condition` holds. Raises AssertionError, naming `what`, after `within_s`."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > within_s:
            raise AssertionError(f"{what} did not happen within {within_s:g} s")
        time.sleep(STEP_S)
    return time.monotonic() - start


async def until(condition: Callable[[], object], within_s: float, what: str = "it") -> None:
    """The same inside an event loop."""
    for _ in range(max(1, round(within_s / STEP_S))):
        if condition():
            return
        await asyncio.sleep(STEP_S)
    raise AssertionError(f"{what} did not happen within {within_s:g} s")
