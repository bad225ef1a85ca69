"""The warmed process: it has imported what its children need, and forks one for each request.

Run as `python -m coral.core.serve.agent.forking FD MODULE… ROOM`. Over the socket FD come JSON requests, each
with two descriptors: where the child writes, and where it waits for leave; for each goes back the child's id.
A child is forked twice, so that it becomes the agent's own (the agent is its subreaper): who watches, limits
and ends a fresh process can do so with this one. It runs nothing before the agent, which knows its id by
then, gives it leave, and ends where it gets none. Nothing here starts a thread: a fork of a process with
threads may never get on.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import runpy
import signal
import socket
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from coral.core.serve.agent.title import show

PR_SET_PDEATHSIG = 1
MESSAGE_BYTES = 1 << 20
LEAVE = b"go"
JOIN_S = 1.0
"""Threads that a library joins at a fork have left /proc soon after it."""


class Job:
    """In the child: what it is to become."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._argv: list[str] = request["argv"]
        self._env: dict[str, str] = request["env"]

    def run(self) -> None:
        """As `python -m MODULE ARGUMENTS…` would; ends by SystemExit or returns."""
        os.environ.update(self._env)
        show(self._argv)
        sys.orig_argv = list(self._argv)
        random.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # its global state; generators that a module made are its own
        module, *arguments = self._argv[2:]
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(channel: socket.socket, agent: int) -> Job | None:
    """Until the agent has gone (None); in a child, its job."""
    while True:
        data, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        output, leave = files
        pid = _fork_twice()
        if pid == 0:
            channel.close()
            _become_the_agents(agent, output, leave)
            return Job(json.loads(data))
        os.close(output)
        os.close(leave)
        channel.send(json.dumps({"pid": max(0, pid)}).encode())


def _fork_twice() -> int:
    """0 in the child; here its id, or -1 where the kernel has no room for one."""
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as told, open(writer, "wb", buffering=0) as telling:
        try:
            between = os.fork()
        except OSError:
            return -1
        if not between:
            with contextlib.suppress(OSError):
                child = os.fork()
                if not child:
                    return 0
                os.setpgid(child, child)  # before anyone knows of it who might signal its group
                telling.write(str(child).encode())
            os._exit(0)
        telling.close()
        pid = told.read(32)
        os.waitpid(between, 0)
    return int(pid or -1)


def _become_the_agents(agent: int, output: int, leave: int) -> None:
    """Wait for leave, then end with the agent however it ends; it may be gone already."""
    if os.read(leave, len(LEAVE)) != LEAVE:
        os._exit(0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.close(leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def warm(modules: Sequence[str]) -> str:
    """Import them; what is wrong, or nothing."""
    try:
        for module in modules:
            import_module(module)
    except Exception as error:  # whatever a module raises: its children would meet it as well
        return f"{type(error).__name__}: {error}"
    threads = _threads_at_a_fork()
    if threads:
        return f"importing {', '.join(modules)} has started {threads} threads"
    gc.collect()
    gc.freeze()  # no child's collections touch, and so copy, what is here
    return ""


def _threads_at_a_fork() -> int:
    """Threads beside this one that a fork would leave behind. A library may join its own before one, as
    OpenBLAS does, so a fork is tried."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + JOIN_S
    while (threads := len(list(Path("/proc/self/task").iterdir())) - 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    return threads


def main() -> None:
    agent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    modules = sys.argv[2:-1]
    show(["coral-warmed", *modules])
    wrong = warm(modules)
    channel.send(json.dumps({"ready": not wrong, "error": wrong}).encode())
    if wrong:
        while channel.recv(MESSAGE_BYTES):  # closed with words unread, our own would be lost with them
            pass
        return
    job = serve(channel, agent)
    if job is not None:
        job.run()


if __name__ == "__main__":
    main()
