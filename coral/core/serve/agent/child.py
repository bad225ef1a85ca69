"""One process that the agent has started: its process group, output, memory limit and end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from pathlib import Path

from coral.core.serve.agent.log import BoundedLog
from coral.core.serve.agent.memory import anonymous_bytes
from coral.core.serve.net.wire import StartProcess

PR_SET_PDEATHSIG = 1
READ_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """In the child, before exec: the kernel ends it when the agent is gone, however it went."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def exit_code(status: os.waitid_result) -> int:
    """As `subprocess` counts: negative for a signal."""
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


class Child:
    """Started in a process group of its own, so that what it starts ends with it.

    Raises OSError where the program cannot be started.
    """

    def __init__(self, start: StartProcess, log: Path) -> None:
        self.name = start.process
        self.memory_bytes = start.memory_bytes
        self.reason = ""
        self._kill_at: float | None = None
        self._process = subprocess.Popen(
            start.argv,
            env={**os.environ, **start.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=_die_with_parent,  # one call into libc, bound before the fork
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._log = BoundedLog(log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> int:
        """File descriptor that becomes readable when it has written."""
        return self._pipe.fileno()

    def read(self) -> bool:
        """Take what it has written. False when it has closed its output."""
        while True:
            try:
                data = os.read(self.output, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._log.write(data)

    def over_limit(self) -> int:
        """Bytes it holds when that is more than it may, else 0."""
        if not self.memory_bytes:
            return 0
        held = anonymous_bytes(self.pid)
        return held if held > self.memory_bytes else 0

    def stop(self, grace_s: float, now: float, reason: str) -> None:
        """Ask its group to end; `enforce` kills what is left `grace_s` later. Sooner counts."""
        kill_at = now + grace_s
        if self._kill_at is None:
            self.reason = self.reason or reason
            self._signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
            self._kill_at = kill_at
        self._kill_at = min(self._kill_at, kill_at)

    def enforce(self, now: float) -> None:
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def ended(self) -> int | None:
        """Its exit code once it has ended, and then nothing of its group is left."""
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        self._signal(signal.SIGKILL)  # while its zombie still holds the id of the group
        self._process.wait()
        self.read()
        self._pipe.close()
        self._log.close()
        return exit_code(status)

    def tail(self) -> str:
        return self._log.tail()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # all of it has ended already
