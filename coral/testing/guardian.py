"""Ends what a test has started once the test is gone, however it went.

`python -I guardian.py MARK` reads its standard input, a pipe whose other end the test holds. Where that ends
without a word, the test was killed: all processes whose environment holds MARK are killed until none is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 30.0
QUIET = 3
"""Looks in a row that find nothing: a process may be forking at any of them."""


def marked(mark: str) -> dict[int, str]:
    """All living processes with `NAME=value` in their environment: pid and command line."""
    found: dict[int, str] = {}
    wanted = mark.encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if state not in "ZX":
            found[int(entry.name)] = command
    return found


def kill_marked(mark: str) -> None:
    """Until none is left, or, for what the kernel cannot end, for some time."""
    deadline = time.monotonic() + PATIENCE_S
    quiet = 0
    while quiet < QUIET and time.monotonic() < deadline:
        left = marked(mark)
        quiet = 0 if left else quiet + 1
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


class Guardian:
    """Watches over this process from now on."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
        )

    def dismiss(self) -> None:
        """Nothing is left to be ended."""
        self._process.communicate(b"done", timeout=PATIENCE_S)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read():
        kill_marked(sys.argv[1])


if __name__ == "__main__":
    main()
