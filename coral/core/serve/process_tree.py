"""Processes below a process, as Linux lists them."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents first; one that ends while it is looked at counts as none."""
    found: list[int] = []
    pending = [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            try:
                below = [int(word) for word in task.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += below
            pending += below
    return found
