"""The agent's loop: one thread, one socket, the pipes of its children."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import zmq

import coral
from coral.core.serve.agent.child import Child, become_subreaper
from coral.core.serve.agent.starting import Starting
from coral.core.serve.net.wire import (
    AgentHello,
    AnyMessage,
    Heartbeat,
    Message,
    ProcessExited,
    ProcessStarted,
    ProcessStatus,
    Shutdown,
    StartProcess,
    StopProcess,
    decode,
    encode,
)
from coral.errors import ProtocolError

TICK_MS = 100
HEARTBEAT_S = 1.0
MEMORY_S = 0.5
LEAVE_GRACE_S = 3.0
HIGH_WATER = 1000


class Agent:
    """Runs until the coordinator is silent for `grace_s`, tells it to leave, or `leave` is called."""

    def __init__(self, *, coordinator: str, machine: str, grace_s: float, logs: Path) -> None:
        self._machine = machine
        self._grace_s = grace_s
        self._logs = logs
        self._children: dict[str, Child] = {}
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"agent:{machine}".encode())
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.connect(coordinator)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._reading: dict[int, Child] = {}
        self._starting = Starting(logs, self._has_started, self._not_started, self._say)
        self._leaving = ""
        self._leave_grace_s = LEAVE_GRACE_S
        self._heard = time.monotonic()

    def leave(self, reason: str) -> None:
        """End everything and then the agent itself. May be called from a signal handler."""
        self._leaving = self._leaving or reason

    def run(self) -> None:
        become_subreaper()
        self._say(f"dials the coordinator, grace {self._grace_s:g} s")
        self._hello()
        beat_at = memory_at = 0.0
        try:
            while not self._leaving:
                self._turn()
                now = time.monotonic()
                if now - self._heard > self._grace_s:
                    self.leave(f"the coordinator has been silent for {self._grace_s:g} s")
                if now >= beat_at:
                    beat_at = now + HEARTBEAT_S
                    if now - self._heard > 3 * HEARTBEAT_S:
                        self._hello()  # a coordinator that came back does not know us
                    else:
                        self._send(Heartbeat(at_s=time.time()))
                if now >= memory_at:
                    memory_at = now + MEMORY_S
                    self._enforce_memory(now)
        finally:
            self._end_all()
            self._socket.close()
            self._context.term()

    def _turn(self) -> None:
        """Wait up to a tick; read output, messages, and who has ended."""
        for source, _ in self._polled():
            if source in self._starting.fds:
                self._starting.read(source, time.monotonic())
            elif isinstance(source, int) and not self._reading[source].read():
                self._forget_output(self._reading[source])
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._heard = time.monotonic()
            try:
                self._do(decode(frame))
            except ProtocolError as error:
                self._say(f"ignores a message: {error}")
        now = time.monotonic()
        self._starting.tick(now)
        self._starting.reap({child.pid for child in self._children.values()})
        for child in list(self._children.values()):
            child.enforce(now)
            if (code := child.ended()) is not None:
                self._forget_output(child)
                del self._children[child.name]
                self._say(f"{child.name} ended with {code}" + (f": {child.reason}" if child.reason else ""))
                self._send(
                    ProcessExited(
                        process=child.name, pid=child.pid, code=code, tail=child.tail(), reason=child.reason
                    )
                )

    def _polled(self) -> list[tuple[object, int]]:
        """What is readable within a tick; warmed processes come and go, so they are asked for each time."""
        warmed = self._starting.fds
        for fd in warmed:
            self._poller.register(fd, zmq.POLLIN)
        try:
            return list(self._poller.poll(TICK_MS))
        finally:
            for fd in warmed:
                self._poller.unregister(fd)

    def _do(self, message: AnyMessage) -> None:
        match message:
            case StartProcess():
                self._start(message)
            case StopProcess(process=name, grace_s=grace_s):
                if name in self._children:
                    self._children[name].stop(grace_s, time.monotonic(), "asked to end")
                else:
                    self._starting.cancel(name, "asked to end")
            case Shutdown(grace_s=grace_s, reason=reason):
                self._leave_grace_s = grace_s
                self.leave(reason or "asked to leave")
            case Heartbeat():
                pass
            case _:
                self._say(f"ignores a {type(message).__name__}")

    def _start(self, message: StartProcess) -> None:
        name = message.process
        if self._leaving:
            self._send(
                ProcessExited(process=name, pid=0, code=125, reason=f"the agent leaves: {self._leaving}")
            )
        elif name in self._children:
            self._send(ProcessStarted(process=name, pid=self._children[name].pid))
        else:
            self._starting.start(message, time.monotonic())

    def _has_started(self, child: Child, how: str) -> None:
        self._children[child.name] = child
        self._reading[child.output] = child
        self._poller.register(child.output, zmq.POLLIN)
        self._say(f"started {child.name}, pid {child.pid}{how}")
        self._send(ProcessStarted(process=child.name, pid=child.pid))

    def _not_started(self, name: str, code: int, reason: str) -> None:
        self._send(ProcessExited(process=name, pid=0, code=code, reason=reason))

    def _forget_output(self, child: Child) -> None:
        for descriptor in [fd for fd, owner in self._reading.items() if owner is child]:
            del self._reading[descriptor]
            self._poller.unregister(descriptor)

    def _enforce_memory(self, now: float) -> None:
        for child in self._children.values():
            if held := child.over_limit():
                mib, limit = held / 2**20, child.memory_bytes / 2**20
                child.stop(0.0, now, f"used {mib:,.0f} MiB of memory, its limit is {limit:,.0f} MiB")

    def _end_all(self) -> None:
        """Terminate, then kill: bounded by the leave grace and the time the kernel needs."""
        self._say(f"leaves: {self._leaving or 'an error'}")
        self._starting.close()
        now = time.monotonic()
        for child in self._children.values():
            child.stop(self._leave_grace_s, now, self._leaving)
        deadline = now + self._leave_grace_s + 5.0
        while self._children and time.monotonic() < deadline:
            self._turn()
        for child in self._children.values():  # only what the kernel cannot end: uninterruptible I/O
            self._say(f"{child.name}, pid {child.pid}, has been killed and has not ended")

    def _hello(self) -> None:
        running = tuple(ProcessStatus(process=c.name, pid=c.pid) for c in self._children.values())
        self._send(
            AgentHello(machine=self._machine, pid=os.getpid(), version=coral.__version__, running=running)
        )

    def _send(self, message: Message) -> None:
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self._say(f"cannot send a {type(message).__name__}: the coordinator takes none")

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nowhere to say it (a full disk): the work goes on
            print(f"{time.strftime('%H:%M:%S')} agent of {self._machine} {text}", file=sys.stderr, flush=True)
