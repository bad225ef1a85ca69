"""How the agent starts a process: forked from a warmed one where it may be, afresh otherwise."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from coral.core.serve.agent.child import Child
from coral.core.serve.agent.warm import Key, Warm, key_of, request_of
from coral.core.serve.agent.warmed import Wish
from coral.core.serve.net.wire import StartProcess


class Starting:
    """Used by the agent's one thread. Of every process asked for, `started` or `failed` is told in the end:
    `started` with the child and how it came about, `failed` with an exit code and a reason."""

    def __init__(
        self,
        logs: Path,
        started: Callable[[Child, str], None],
        failed: Callable[[str, int, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._logs = logs
        self._started = started
        self._failed = failed
        self._say = say
        self._warm = Warm()
        self._coming: dict[str, str] = {}
        """Names of those that are being forked, and why they are no longer wanted, if so."""

    @property
    def fds(self) -> Sequence[int]:
        return self._warm.fds

    def read(self, fd: object, now: float) -> None:
        if isinstance(fd, int):
            self._warm.read(fd, now)

    def start(self, start: StartProcess, now: float) -> None:
        if start.process in self._coming:
            return
        key = key_of(start)
        if key is None:
            self._afresh(start)
            return
        if why := self._warm.hopeless(key, now):
            self._afresh(start, why)
            return
        output, writer = os.pipe()
        self._coming[start.process] = ""
        wish = Wish(
            request_of(start),
            writer,
            now,
            lambda pid, why: self._forked(start, key, pid, why, output, writer),
        )
        try:
            self._warm.fork(key, wish)
        except OSError as error:
            wish.done(0, f"{start.argv[0]} cannot be started: {error.strerror or error}")

    def cancel(self, name: str, reason: str) -> None:
        """It is not wanted any more; where it is coming, it ends as soon as it is there."""
        if name in self._coming:
            self._coming[name] = reason

    def tick(self, now: float) -> None:
        self._warm.tick(now)

    def reap(self, watched: Collection[int]) -> None:
        """Orphans of our children have become ours, and end as zombies. Those that are `watched` are left
        to whoever wants their exit code; while something is being forked, nobody is known to be an orphan."""
        while not self._warm.busy:
            try:
                status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if status is None or status.si_pid in watched or status.si_pid in self._warm.pids:
                return
            os.waitpid(status.si_pid, 0)

    def close(self) -> None:
        """Nothing more is started; what was on its way is told as failed."""
        for name in self._coming:
            self._coming[name] = self._coming[name] or "the agent leaves"
        self._warm.close()

    def _forked(self, start: StartProcess, key: Key, pid: int, why: str, output: int, writer: int) -> None:
        os.close(writer)
        unwanted = self._coming.pop(start.process)
        if not pid:
            os.close(output)
            if unwanted:
                self._failed(start.process, -signal.SIGTERM, unwanted)
                return
            self._say(f"starts {start.process} afresh: the process to fork it from {why}")
            self._afresh(start, why)
            return
        child = Child(start, pid, output, self._log_of(start.process))
        self._started(child, ", forked")
        if unwanted:
            child.stop(0.0, 0.0, unwanted)

    def _afresh(self, start: StartProcess, why: str = "") -> None:
        try:
            child = Child.started(start, self._log_of(start.process))
        except OSError as error:
            reason = f"cannot start {start.argv[0]}: {error.strerror or error}"
            self._failed(start.process, 127, reason)
            return
        if why:
            child.note(f"started afresh: the process to fork it from {why}")
        self._started(child, "")

    def _log_of(self, name: str) -> Path:
        return self._logs / (re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log")
