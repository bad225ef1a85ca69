"""What has become of requests."""

from __future__ import annotations

from msgspec import Struct


class Counters(Struct, kw_only=True):
    """Since start."""

    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    refused: int = 0
    """Not taken in: too many in flight or waiting, or nowhere to go."""
    queued: int = 0
    """Had to wait for room here, or for an instance, before they were sent anywhere."""
    moved: int = 0
    """Went on at another instance, once each time."""
    handed_over: int = 0
    """Went from a prefill to a decode instance, with their KV."""
    tokens: int = 0
    doubles: int = 0
