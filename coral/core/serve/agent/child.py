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
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    """In the child, before exec: the kernel ends it when the agent is gone, however it went."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_subreaper() -> None:
    """What our children leave behind becomes ours, and so does what is forked for us twice."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exit_code(status: os.waitid_result) -> int:
    """As `subprocess` counts: negative for a signal."""
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


class Child:
    """A process of ours in a process group of its own, so that what it starts ends with it.

    `pid` must be a child of this process; `output`, where its output comes from, is owned from now on.
    """

    def __init__(self, start: StartProcess, pid: int, output: int, log: Path) -> None:
        self.name = start.process
        self.memory_bytes = start.memory_bytes
        self.pid = pid
        self.output = output
        """File descriptor that becomes readable when it has written."""
        self.reason = ""
        self._kill_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        os.set_blocking(output, False)
        self._log = BoundedLog(log)

    @classmethod
    def started(cls, start: StartProcess, log: Path) -> Child:
        """A fresh process. Raises OSError where the program cannot be started."""
        output, writer = os.pipe()
        try:
            process = subprocess.Popen(
                start.argv,
                env={**os.environ, **start.env},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                process_group=0,
                preexec_fn=_die_with_parent,  # one call into libc, bound before the fork
            )
        except OSError:
            os.close(output)
            raise
        finally:
            os.close(writer)
        child = cls(start, process.pid, output, log)
        child._process = process
        return child

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

    def note(self, text: str) -> None:
        """A line of the agent's own in its log."""
        self._log.write(f"[{text}]\n".encode())

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
        code = exit_code(status)
        if self._process is not None:
            self._process.wait()
        else:
            os.waitpid(self.pid, 0)
        self.read()
        os.close(self.output)
        self._log.close()
        return code

    def tail(self) -> str:
        return self._log.tail()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # all of it has ended already
