"""Is a process still there? For tests that end processes, or see them ended."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not. It may vanish at any moment, also while it is looked at."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
