"""A real agent process, driven by a socket that plays the coordinator."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TypeVar

import zmq

from coral.core.serve.agent import command
from coral.core.serve.net.wire import (
    AgentHello,
    AnyMessage,
    Heartbeat,
    Message,
    ProcessStarted,
    StartProcess,
    decode,
    encode,
)
from coral.core.serve.process_tree import descendants
from coral.testing.processes import alive
from coral.testing.waiting import wait_until

M = TypeVar("M")


class PlayedCoordinator:
    """The control socket of a coordinator, and an agent that has dialled it."""

    def __init__(self, folder: Path, grace_s: float) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(f"ipc://{folder}/control")
        argv = command(f"ipc://{folder}/control", grace_s=grace_s, logs=folder / "logs")
        with (folder / "agent.log").open("w") as log:
            self.agent = subprocess.Popen([*argv, "--machine", "m-1"], stderr=log, start_new_session=True)
        self.folder = folder

    def send(self, message: Message) -> None:
        self.socket.send_multipart([b"agent:m-1", encode(message)])

    def expect(self, kind: type[M], timeout_s: float = 20.0) -> M:
        """The next message of that kind; heartbeats keep going meanwhile."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.socket.poll(200):
                message: AnyMessage = decode(self.socket.recv_multipart()[1])
                if isinstance(message, kind):
                    return message
            if kind is not AgentHello:
                self.send(Heartbeat(at_s=time.time()))
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s; {self.log()}")

    def start(self, name: str, argv: tuple[str, ...], memory_bytes: int = 0) -> int:
        self.send(StartProcess(process=name, argv=argv, memory_bytes=memory_bytes))
        return self.expect(ProcessStarted).pid

    def warmed(self) -> int:
        """The process that others are forked from. What was forked has its name until it runs."""
        found: list[int] = []

        def alone() -> bool:
            below = descendants(self.agent.pid)
            found[:] = [pid for pid in below if command_line(pid)[0] == "coral-warmed"]
            return len(found) == 1

        wait_until(alone, 10.0, "a single warmed process")
        return found[0]

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()
        if self.agent.poll() is None:
            self.agent.kill()
        self.agent.wait(10)


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def wait_gone(pids: list[int], within_s: float) -> float:
    start = time.monotonic()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() - start < within_s, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.05)
    return time.monotonic() - start
