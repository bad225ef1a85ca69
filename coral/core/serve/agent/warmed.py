"""One warmed process as its agent sees it: a process, a socket, and wishes that it answers one by one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coral.core.serve.agent.forking import LEAVE, MESSAGE_BYTES
from coral.core.serve.agent.title import ROOM

MODULE = "coral.core.serve.agent.forking"


@dataclass(slots=True)
class Wish:
    """A process asked for. `done` gets its id, or 0 and why it was not forked; it owns `output`."""

    request: Mapping[str, object]
    output: int
    asked: float
    done: Callable[[int, str], None]
    deaths: int = 0
    """Warmed processes that have died before they answered it."""


class Warmed:
    """The first of `wishes` is the one that it has been asked for, once it is ready.

    Raises OSError where it cannot be started.
    """

    def __init__(self, python: str, modules: Sequence[str], env: Mapping[str, str], now: float) -> None:
        self.wishes: deque[Wish] = deque()
        self.since = now
        """Since when it does what it does: import, fork, or nothing."""
        self.useless = False
        """Nothing can be forked after these modules."""
        self._ready = False
        self._leave = -1
        """Where the child of the first wish waits; -1 where it has not been asked for."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [python, "-m", MODULE, str(theirs.fileno()), *modules, "." * ROOM],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._channel.setblocking(False)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def go_on(self, now: float) -> str:
        """Hear what it says, ask for what is wanted next; why it can be used no longer, if so."""
        try:
            data = self._channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return self._ask(now)
        except OSError:
            data = b""
        if not data:
            return "has ended"
        answer = json.loads(data)
        if "pid" in answer:
            self._answered(answer["pid"])
        elif answer["ready"]:
            self._ready = True
        else:
            self.useless = True
            return str(answer["error"])
        self.since = now
        return self._ask(now)

    def end(self) -> None:
        """Kill it. A child that is being forked ends by itself, since nobody gives it leave."""
        if self._leave >= 0:
            os.close(self._leave)
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, now: float) -> str:
        if not self._ready or not self.wishes or self._leave >= 0:
            return ""
        wish = self.wishes[0]
        leave, self._leave = os.pipe()
        try:
            socket.send_fds(self._channel, [json.dumps(wish.request).encode()], [wish.output, leave])
        except OSError as error:
            return f"cannot be asked: {error.strerror or error}"
        finally:
            os.close(leave)
        self.since = now
        return ""

    def _answered(self, pid: int) -> None:
        if pid:
            with contextlib.suppress(BrokenPipeError):  # it was killed meanwhile: its exit code says so
                os.write(self._leave, LEAVE)
        os.close(self._leave)
        self._leave = -1
        self.wishes.popleft().done(pid, "" if pid else "could not fork")
