"""A process beside the coordinator (preparation, planner): its output bounded, its end certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from coral.core.serve.agent.log import BoundedLog
from coral.core.serve.lifeline import tie_to_parent
from coral.core.serve.process_tree import descendants

END_GRACE_S = 3.0
LINE_BYTES = 1 << 24


class SideProcess:
    """In a session of its own, so that a Ctrl-C at the terminal reaches the coordinator alone."""

    def __init__(self, process: asyncio.subprocess.Process, log: BoundedLog) -> None:
        self._process = process
        self._log = log
        self._reading = asyncio.create_task(self._read(), name=f"output of {process.pid}")

    @classmethod
    async def start(cls, argv: Sequence[str], log: Path, *, piped: bool = False) -> SideProcess:
        """With `piped`, its standard input and output are ours to write and read."""
        bounded = BoundedLog(log)
        pipe = asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=pipe,
                stdout=pipe,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=LINE_BYTES,
                preexec_fn=tie_to_parent,  # also where we are killed before it can look who its parent is
            )
        except BaseException:
            bounded.close()
            raise
        return cls(process, bounded)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    def tail(self) -> str:
        """The last lines it has written to its standard error."""
        return self._log.tail()

    async def wait(self) -> int:
        code = await self._process.wait()
        await self._reading
        return code

    async def end(self, grace_s: float = END_GRACE_S) -> None:
        """Ask it to end, then kill it and everything it has started. May be called twice."""
        if self._process.returncode is None and grace_s > 0:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):  # killed below
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        if self._process.returncode is None:
            for pid in [*reversed(descendants(self.pid)), self.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        await self.wait()

    async def _read(self) -> None:
        assert self._process.stderr is not None
        try:
            while data := await self._process.stderr.read(1 << 16):
                self._log.write(data)
        finally:
            self._log.close()
