"""Resident memory of every process of a system, sampled, and whether it grows."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from msgspec import Struct

from coral.testing.guardian import marked

SAMPLE_S = 0.5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Growth(Struct, frozen=True, kw_only=True):
    """Of one process. `ratio`: the most it held in the second half over the most it held in the first."""

    process: str
    first_mib: float
    second_mib: float
    ratio: float


class MemoryLog(threading.Thread):
    """Samples from `start` to `stop`; `half` begins the second half."""

    def __init__(self, mark: str) -> None:
        super().__init__(name="memory", daemon=True)
        self._mark = mark
        self._quit = threading.Event()
        self._half = 0
        self._most: dict[int, list[int]] = {}
        self._names: dict[int, str] = {}

    def run(self) -> None:
        self._sample()
        while not self._quit.wait(SAMPLE_S):
            self._sample()

    def half(self) -> None:
        self._half = 1

    def stop(self) -> None:
        self._quit.set()
        self.join()
        self._sample()

    def _sample(self) -> None:
        half = self._half
        for pid, command in marked(self._mark).items():
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            self._names[pid] = command
            most = self._most.setdefault(pid, [0, 0])
            most[half] = max(most[half], pages * PAGE_BYTES)

    def growths(self) -> list[Growth]:
        """Of the processes that lived through both halves, most grown first."""
        found = [
            Growth(
                process=name_of(self._names[pid]),
                first_mib=round(first / 2**20, 1),
                second_mib=round(second / 2**20, 1),
                ratio=round(second / first, 4),
            )
            for pid, (first, second) in self._most.items()
            if first and second
        ]
        return sorted(found, key=lambda one: -one.ratio)


def name_of(command: str) -> str:
    """A short name for a command line of Coral's."""
    words = command.split()
    if "-m" not in words:
        return " ".join(words[:1]) if words[0] == "coral-warmed" else "coordinator"
    module = words[words.index("-m") + 1].removeprefix("coral.core.").removeprefix("serve.")
    for name in ("--instance", "--node", "--machine"):
        if name in words:
            return f"{module} {words[words.index(name) + 1]}"
    return module
