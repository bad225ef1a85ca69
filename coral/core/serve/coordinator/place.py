"""Where the processes of a machine are, as its agent has said."""

from __future__ import annotations

import sys

from msgspec import Struct


class Place(Struct, frozen=True, kw_only=True):
    """`network`: it is another machine: its processes bind TCP sockets at `host`, an IP address, and start
    with the interpreter `python`. Else it is this one."""

    network: bool = False
    host: str = "127.0.0.1"
    python: str = sys.executable
