"""The clock that limits are kept by, for those who decide and must not look at one themselves."""

from __future__ import annotations

import time


def seconds() -> float:
    """Seconds since some moment; never runs backwards."""
    return time.monotonic()
