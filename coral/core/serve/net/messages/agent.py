"""Agent and coordinator."""

from __future__ import annotations

from msgspec import Struct, field

from coral.core.serve.net.messages.base import Message


class ProcessStatus(Struct, frozen=True, kw_only=True):
    process: str
    pid: int


class AgentHello(Message, frozen=True, kw_only=True, tag="agent-hello"):
    machine: str
    pid: int
    version: str
    running: tuple[ProcessStatus, ...] = ()


class StartProcess(Message, frozen=True, kw_only=True, tag="start"):
    """Start one scheduler or worker. `memory_bytes` > 0 is enforced by the agent. `preload`: modules that it
    imports anyway; it may be forked from a process that has imported them."""

    process: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    preload: tuple[str, ...] = ()


class StopProcess(Message, frozen=True, kw_only=True, tag="stop"):
    process: str
    grace_s: float = 5.0


class ProcessStarted(Message, frozen=True, kw_only=True, tag="started"):
    process: str
    pid: int


class ProcessExited(Message, frozen=True, kw_only=True, tag="exited"):
    """`code` is negative for a signal. `tail`: last lines of its standard error. `reason`: why the
    agent ended it, if it did."""

    process: str
    pid: int
    code: int
    tail: str = ""
    reason: str = ""
