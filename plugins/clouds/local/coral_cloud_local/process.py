"""A process known by its id and start time, so that one that got a recycled id is never signalled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from msgspec import Struct


class ProcessId(Struct, frozen=True):
    """`started` is in clock ticks since boot, as the kernel counts (field 22 of /proc/pid/stat)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises ProcessLookupError where there is no such process."""
        found = _stat(pid)
        if found is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, found[1])

    def alive(self) -> bool:
        """Whether that very process runs (a zombie has ended)."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.started and found[0] not in "ZX"

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens where it has ended. A pidfd rules out a recycled id between check and signal."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


def _stat(pid: int) -> tuple[str, int] | None:
    """(state letter, start time)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
