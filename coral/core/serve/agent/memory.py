"""How much memory of its own a process holds: anonymous pages, as Linux counts them.

Mapped files are left out: pages of a checkpoint that the kernel may drop at will are no use of memory.
"""

from __future__ import annotations

from pathlib import Path

from coral.core.serve.process_tree import descendants


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process and all its descendants, in bytes; 0 where it is gone."""
    return sum(map(_own, [pid, *descendants(pid)]))


def _own(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # a zombie has no memory lines
