"""What every message is, and what any process may send."""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all messages."""


class Heartbeat(Message, frozen=True, kw_only=True, tag="beat"):
    at_s: float


class Shutdown(Message, frozen=True, kw_only=True, tag="shutdown"):
    """End what you run and leave within `grace_s` seconds."""

    grace_s: float = 5.0
    reason: str = ""
