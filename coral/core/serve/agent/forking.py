"""The warmed process: it has imported what its children need, and forks one for each request.

Run as `python -m coral.core.serve.agent.forking FD MODULE…`. Over the socket FD come JSON requests, each
with the file to write output to; for each goes back the child's id. A child is forked twice, so that it
becomes the agent's own (the agent is its subreaper): who watches, limits and ends a fresh process can do so
with this one. Nothing here starts a thread: a fork of a process with threads may never get on.
"""

from __future__ import annotations

import array
import ctypes
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

PR_SET_PDEATHSIG = 1
MESSAGE_BYTES = 1 << 20


class Job:
    """In the child: what it is to become."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._argv: list[str] = request["argv"]
        self._env: dict[str, str] = request["env"]

    def run(self) -> None:
        """As `python -m MODULE ARGUMENTS…` would; ends by SystemExit or returns."""
        os.environ.update(self._env)
        random.seed()
        module, *arguments = self._argv
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(channel: socket.socket, agent: int) -> Job | None:
    """Until the agent has gone (None); in a child, its job."""
    while True:
        data, files, _, _ = channel.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(array.array("i").itemsize))
        if not data:
            return None
        output = array.array("i")
        for _, _, raw in files:
            output.frombytes(raw)
        request = json.loads(data)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            os.setpgid(0, 0)
            _adopted_by(agent, between)
            os.write(writer, str(os.getpid()).encode())
            os.dup2(output[0], 1)
            os.dup2(output[0], 2)
            os.closerange(3, max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1)
            return Job(request)
        os.close(writer)
        os.close(output[0])
        os.waitpid(between, 0)
        pid = os.read(reader, 32)
        os.close(reader)
        channel.send(json.dumps({"pid": int(pid or 0)}).encode())


def _adopted_by(agent: int, between: int) -> None:
    """Wait until the agent is the parent, then end with it however it ends; it may be gone already."""
    while os.getppid() == between:
        time.sleep(0.0005)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(126)


def warm(modules: Sequence[str]) -> str:
    """Import them; what is wrong, or nothing."""
    try:
        for module in modules:
            import_module(module)
    except Exception as error:  # whatever a module raises: its children would meet it as well
        return f"{type(error).__name__}: {error}"
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        return f"importing {', '.join(modules)} has started {threads - 1} threads"
    return ""


def main() -> None:
    agent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    wrong = warm(sys.argv[2:])
    channel.send(json.dumps({"ready": not wrong, "error": wrong}).encode())
    if wrong:
        while channel.recv(MESSAGE_BYTES):  # closed with words unread, our own would be lost with them
            pass
        return
    job = serve(channel, agent)
    if job is not None:
        channel.detach()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        job.run()


if __name__ == "__main__":
    main()
