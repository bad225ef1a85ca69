"""The agent's side of its warmed processes (`forking`): started when wanted, asked, replaced when lost."""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coral.core.serve.agent.forking import MESSAGE_BYTES
from coral.core.serve.net.wire import StartProcess

PATIENCE_S = 120.0
"""How long a warmed process may take to import what it is for, and to fork."""
OWN = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
"""What differs between processes that can be forked from one, and is set after the fork; so are secrets."""
SECRET = "CORAL_"

Key = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]


def key_of(start: StartProcess) -> Key | None:
    """What it can be forked from: interpreter, modules, environment. None where it must be started afresh."""
    if not start.preload or len(start.argv) < 3 or start.argv[1] != "-m":
        return None
    common = {name: value for name, value in start.env.items() if not _own(name)}
    return start.argv[0], start.preload, tuple(sorted(common.items()))


def _own(name: str) -> bool:
    return name in OWN or name.startswith(SECRET)


@dataclass(slots=True)
class Wish:
    """A process asked for. `done` gets its id, or 0 and why it was not forked; it owns `output`."""

    start: StartProcess
    output: int
    asked: float
    done: Callable[[int, str], None]


@dataclass(slots=True)
class _Warmed:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: bool = False
    wishes: deque[Wish] = field(default_factory=deque)


class Warm:
    """Used by the agent's one thread: `fds` for its poller, `read` when one is readable, `tick` at times."""

    def __init__(self) -> None:
        self._warmed: dict[Key, _Warmed] = {}
        self._hopeless: dict[Key, str] = {}

    @property
    def fds(self) -> Sequence[int]:
        return [one.channel.fileno() for one in self._warmed.values()]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(one.process.pid for one in self._warmed.values())

    @property
    def busy(self) -> bool:
        """Somebody has been asked for a process and has not answered."""
        return any(one.wishes for one in self._warmed.values())

    def hopeless(self, key: Key) -> str:
        """Why nothing can be forked from it; empty where that was not tried or works."""
        return self._hopeless.get(key, "")

    def fork(self, key: Key, wish: Wish) -> None:
        """`wish.done` is called later, in any case. Raises OSError where no process can be started."""
        one = self._warmed.get(key) or self._begin(key)
        start = wish.start
        request = {
            "argv": start.argv[2:],
            "env": {name: value for name, value in start.env.items() if _own(name)},
        }
        handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [wish.output]))]
        one.wishes.append(wish)
        try:
            one.channel.sendmsg([json.dumps(request).encode()], handed)
        except OSError as error:
            self._lost(key, f"cannot be asked: {error.strerror or error}")

    def read(self, fd: int) -> None:
        for key, one in list(self._warmed.items()):
            if one.channel.fileno() == fd:
                self._take(key, one)

    def tick(self, now: float) -> None:
        """Whoever does not answer in time is ended, and its wishes are answered."""
        for key, one in list(self._warmed.items()):
            if one.wishes and now - one.wishes[0].asked > PATIENCE_S:
                self._lost(key, f"did not answer within {PATIENCE_S:g} s")

    def close(self) -> None:
        for key in list(self._warmed):
            self._lost(key, "the agent leaves")

    def _begin(self, key: Key) -> _Warmed:
        python, modules, env = key
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                [python, "-m", "coral.core.serve.agent.forking", str(theirs.fileno()), *modules],
                env={**os.environ, **dict(env)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._warmed[key] = _Warmed(process, ours)
        return self._warmed[key]

    def _take(self, key: Key, one: _Warmed) -> None:
        try:
            data = one.channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(key, "has ended")
            return
        answer = json.loads(data)
        if "pid" in answer:
            one.wishes.popleft().done(answer["pid"], "" if answer["pid"] else "could not fork")
        elif answer["ready"]:
            one.ready = True
        else:
            self._hopeless[key] = answer["error"]
            self._lost(key, answer["error"])

    def _lost(self, key: Key, why: str) -> None:
        one = self._warmed.pop(key)
        one.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        for wish in one.wishes:
            wish.done(0, why)
