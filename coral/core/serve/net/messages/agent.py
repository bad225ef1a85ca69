"""Agent and coordinator."""

from __future__ import annotations

from msgspec import Struct, field

from coral.core.serve.net.messages.base import Message


class ProcessStatus(Struct, frozen=True, kw_only=True):
    process: str
    pid: int


class Join(Message, frozen=True, kw_only=True, tag="join"):
    """Said under the key of a join token: let this machine speak under a key of its own from now on.

    `public_key` (Z85) is that key. `machine`: its name; where it is empty the token says which.
    """

    public_key: str
    machine: str
    version: str


class Joined(Message, frozen=True, kw_only=True, tag="joined"):
    """The answer to `Join`, and to the hello of an agent on another machine, which is `machine` from now on.
    `grace_s`: how long it keeps what it runs while the coordinator is gone."""

    machine: str
    grace_s: float


class JoinRefused(Message, frozen=True, kw_only=True, tag="join-refused"):
    reason: str


class AgentHello(Message, frozen=True, kw_only=True, tag="agent-hello"):
    """An agent on another machine says where that is reached (`address`, an IP address), and with which
    interpreter it starts processes of ours (`python`)."""

    machine: str
    pid: int
    version: str
    running: tuple[ProcessStatus, ...] = ()
    address: str = ""
    python: str = ""


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
