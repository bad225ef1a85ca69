"""The process a solver runs in, as its caller holds it: started, asked, ended."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import weakref
from typing import Any

import msgspec
from msgspec import Struct

from coral.core.plugins import PluginRecord
from coral.core.solve.frames import Frames
from coral.core.solve.memory import data_bytes

MODULE = "coral.core.solve.child"
STANDARD_ERROR = 2

_held: weakref.WeakSet[SolverProcess] = weakref.WeakSet()


class SolverSetup(Struct, frozen=True, kw_only=True):
    """What the process is told on its command line, as JSON."""

    name: str
    options: dict[str, Any]
    record: PluginRecord
    """The one plugin that it loads."""
    memory_bytes: int | None
    socket: int
    lifeline: int


class SolverProcess:
    """Raises OSError where no process can be started.

    It leads a process group of its own, so that what a solver starts ends with it, and a terminal's Ctrl-C
    is its caller's to act on. What it prints goes to standard error: a caller's output may be parsed. A copy
    of its caller (a fork) lets it go at once.
    """

    def __init__(
        self, name: str, options: dict[str, Any], record: PluginRecord, memory_bytes: int | None
    ) -> None:
        ours, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        self._owner = os.getpid()
        setup = SolverSetup(
            name=name,
            options=options,
            record=record,
            memory_bytes=memory_bytes,
            socket=theirs.fileno(),
            lifeline=reading,
        )
        try:
            self._process = subprocess.Popen(
                (sys.executable, "-m", MODULE, msgspec.json.encode(setup).decode()),
                stdin=subprocess.DEVNULL,
                stdout=STANDARD_ERROR,
                pass_fds=(theirs.fileno(), reading),
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(reading)
        self.frames = Frames(ours)
        self.ready = False
        """Set by its caller once the solver in it is built."""
        self._open = True
        _held.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs; one that has ended is left for `end` to bury."""
        if not self._open:
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def grow_by(self, most_bytes: int) -> None:
        """Let it allocate that much beyond what it holds now."""
        with contextlib.suppress(OSError, ValueError):  # it may have ended by itself
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_DATA)
            most = data_bytes(self.pid) + most_bytes
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (most, hard))

    def end(self, wait_s: float = 0.0) -> str:
        """Kill it and all of its group, if it has not ended within `wait_s`, and say how it had ended: `exit
        status 3`, `SIGABRT`, or `killed` where it was still running."""
        if not self._open:
            return "ended"
        if os.getpid() != self._owner:
            self.let_go()
            return "let go"
        was_alive = self._runs_on(wait_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its zombie still holds the id of the group
        self._process.kill()
        status = self._process.wait()
        self.let_go()
        if was_alive:
            return "killed"
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def _runs_on(self, wait_s: float) -> bool:
        until = time.monotonic() + wait_s
        while self.alive():
            if time.monotonic() >= until:
                return True
            time.sleep(0.005)
        return False

    def let_go(self) -> None:
        """Close our ends; the kernel ends the process where nobody else holds them."""
        if self._open:
            self._open = False
            self.frames.close()
            os.close(self._lifeline)
            _held.discard(self)


def _let_all_go() -> None:
    for process in list(_held):
        process.let_go()


os.register_at_fork(after_in_child=_let_all_go)
