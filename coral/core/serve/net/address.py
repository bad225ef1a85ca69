"""Where a node's end of the data plane is reached: its socket, and where communicators are made, if any."""

from __future__ import annotations


def joined(socket: str, paths: str) -> str:
    """Both in one word of a message; `paths` is empty where payloads go with their headers."""
    return f"{socket} {paths}" if paths else socket


def parted(address: str) -> tuple[str, str]:
    """(socket, paths) again."""
    socket, _, paths = address.partition(" ")
    return socket, paths
