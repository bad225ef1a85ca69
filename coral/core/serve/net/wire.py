"""Every message that crosses a socket, and how it is framed.

A message is one frame: a protocol byte, then msgpack of a tagged Struct. Data-plane messages have a
second frame, the payload (see `channel`). Nothing else is ever decoded.

Who talks to whom (all sockets are ZeroMQ)::

    agent, planner ── DEALER ──► coordinator ROUTER (control)
    scheduler      ── DEALER ──► coordinator ROUTER (control)
    worker         ── DEALER ──► scheduler ROUTER (control of the instance)
    last worker    ── PUSH   ──► coordinator PULL (tokens)
    worker         ── PUSH   ──► worker PULL (data: hidden rows, fed tokens)
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from coral.errors import ProtocolError
from coral.types.request import GenerateRequest, Token
from coral.types.stage import EngineStats, InstanceSpec, KvCapacity, StageSpec

PROTOCOL = 1


class Message(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all messages."""


# ---------------------------------------------------------------- anyone


class Heartbeat(Message, frozen=True, kw_only=True, tag="beat"):
    at_s: float


class Shutdown(Message, frozen=True, kw_only=True, tag="shutdown"):
    """End what you run and leave within `grace_s` seconds."""

    grace_s: float = 5.0
    reason: str = ""


# ---------------------------------------------------------------- agent <-> coordinator


class ProcessStatus(Struct, frozen=True, kw_only=True):
    process: str
    pid: int


class AgentHello(Message, frozen=True, kw_only=True, tag="agent-hello"):
    machine: str
    pid: int
    version: str
    running: tuple[ProcessStatus, ...] = ()


class StartProcess(Message, frozen=True, kw_only=True, tag="start"):
    """Start one scheduler or worker. `memory_bytes` > 0 is enforced by the agent."""

    process: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    memory_bytes: int = 0


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


# ---------------------------------------------------------------- scheduler <-> coordinator


class SchedulerHello(Message, frozen=True, kw_only=True, tag="scheduler-hello"):
    instance: str
    generation: int
    pid: int
    address: str
    """Where the instance's workers dial."""


class RunInstance(Message, frozen=True, kw_only=True, tag="run-instance"):
    spec: InstanceSpec
    tokens_address: str
    """Where the last stage pushes tokens."""


class InstanceProgress(Message, frozen=True, kw_only=True, tag="instance-progress"):
    instance: str
    loaded: int
    nodes: int
    text: str = ""


class InstanceReady(Message, frozen=True, kw_only=True, tag="instance-ready"):
    instance: str
    kv_tokens: int
    """Tokens of KV the instance can hold: the least over its stages of the sum over their nodes."""
    max_request_tokens: int
    """The longest single request a route can hold."""
    capacities: dict[str, KvCapacity] = {}


class InstanceFailed(Message, frozen=True, kw_only=True, tag="instance-failed"):
    instance: str
    reason: str
    node: str = ""


class InstanceStats(Message, frozen=True, kw_only=True, tag="instance-stats"):
    instance: str
    running: int
    waiting: int
    preemptions: int
    nodes: dict[str, EngineStats] = {}
    picks: dict[str, int] = {}
    """Requests sent to each node since start."""


class Submit(Message, frozen=True, kw_only=True, tag="submit"):
    request: GenerateRequest


class Abort(Message, frozen=True, kw_only=True, tag="abort"):
    requests: tuple[str, ...]


class RequestRefused(Message, frozen=True, kw_only=True, tag="refused"):
    """The scheduler cannot take it: `status` 400 (too long for any route) or 503 (queue full)."""

    request: str
    status: int
    reason: str


class RequestLost(Message, frozen=True, kw_only=True, tag="lost"):
    """The instance can no longer serve a request it had taken."""

    request: str
    reason: str


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """Take no new requests; say `Drained` when the last has left."""


class Drained(Message, frozen=True, kw_only=True, tag="drained"):
    instance: str


class AskStats(Message, frozen=True, kw_only=True, tag="ask-stats"):
    pass


# ---------------------------------------------------------------- worker <-> scheduler


class WorkerHello(Message, frozen=True, kw_only=True, tag="worker-hello"):
    node: str
    pid: int
    data_address: str


class LoadStage(Message, frozen=True, kw_only=True, tag="load-stage"):
    spec: StageSpec
    tokens_address: str


class StageLoaded(Message, frozen=True, kw_only=True, tag="stage-loaded"):
    node: str
    capacity: KvCapacity
    stats: EngineStats


class WorkerFailed(Message, frozen=True, kw_only=True, tag="worker-failed"):
    node: str
    reason: str


class Wire(Message, frozen=True, kw_only=True, tag="wire"):
    """Data addresses of every node this one sends to: the next stage's, or stage 0's for the last."""

    peers: dict[str, str]


class Wired(Message, frozen=True, kw_only=True, tag="wired"):
    node: str


class OpenSequence(Message, frozen=True, kw_only=True, tag="open"):
    """`route[s]` is the node of stage s. Sent to later stages first; stage 0 starts when it gets it."""

    request: GenerateRequest
    attempt: int
    reserve: int
    route: tuple[str, ...]


class SequenceOpened(Message, frozen=True, kw_only=True, tag="opened"):
    node: str
    request: str
    attempt: int
    error: str = ""
    """Not empty: the engine refused, nothing is held there."""


class ExtendSequence(Message, frozen=True, kw_only=True, tag="extend"):
    request: str
    attempt: int
    reserve: int


class ReleaseSequences(Message, frozen=True, kw_only=True, tag="release"):
    """Free these (request, attempt) pairs; chunks of them still on the way are dropped."""

    sequences: tuple[tuple[str, int], ...]


class SequencesReleased(Message, frozen=True, kw_only=True, tag="released"):
    """Sent after the last token of any of them: what the scheduler then knows is complete."""

    node: str
    sequences: tuple[tuple[str, int], ...]


class SequenceFailed(Message, frozen=True, kw_only=True, tag="sequence-failed"):
    node: str
    request: str
    attempt: int
    reason: str


class WorkerStats(Message, frozen=True, kw_only=True, tag="worker-stats"):
    node: str
    stats: EngineStats


# ---------------------------------------------------------------- last stage -> coordinator, scheduler


class Tokens(Message, frozen=True, kw_only=True, tag="tokens"):
    """All tokens of one engine step."""

    instance: str
    node: str
    tokens: tuple[Token, ...]


# ---------------------------------------------------------------- data plane headers (first frame)


class RowsPart(Struct, frozen=True, kw_only=True, array_like=True):
    request: str
    attempt: int
    start: int
    n: int


class Rows(Message, frozen=True, kw_only=True, tag="rows"):
    """Hidden rows of several requests; the payload holds their rows in the order of `parts`."""

    instance: str
    generation: int
    sender: str
    sequence: int
    dtype: str
    shape: tuple[int, int]
    parts: tuple[RowsPart, ...]


class FedToken(Struct, frozen=True, kw_only=True, array_like=True):
    request: str
    attempt: int
    position: int
    token: int


class Feed(Message, frozen=True, kw_only=True, tag="feed"):
    """Tokens sampled by the last stage, for stage 0. No payload."""

    instance: str
    generation: int
    sender: str
    sequence: int
    tokens: tuple[FedToken, ...]


class Credit(Message, frozen=True, kw_only=True, tag="credit"):
    """The receiver has consumed the sender's messages up to and including `sequence`."""

    instance: str
    generation: int
    sender: str
    sequence: int


# ---------------------------------------------------------------- planner <-> coordinator


class PlannerHello(Message, frozen=True, kw_only=True, tag="planner-hello"):
    pid: int
    templates: int


class PlanAsk(Message, frozen=True, kw_only=True, tag="plan-ask"):
    """`view` is `coral.hookspecs.planner.View` as builtins (it is decoded by its own type)."""

    ask: int
    view: dict[str, Any]


class PlanAnswer(Message, frozen=True, kw_only=True, tag="plan-answer"):
    ask: int
    plan: dict[str, Any] | None = None
    error: str = ""


AnyMessage = (
    Heartbeat
    | Shutdown
    | AgentHello
    | StartProcess
    | StopProcess
    | ProcessStarted
    | ProcessExited
    | SchedulerHello
    | RunInstance
    | InstanceProgress
    | InstanceReady
    | InstanceFailed
    | InstanceStats
    | Submit
    | Abort
    | RequestRefused
    | RequestLost
    | Drain
    | Drained
    | AskStats
    | WorkerHello
    | LoadStage
    | StageLoaded
    | WorkerFailed
    | Wire
    | Wired
    | OpenSequence
    | SequenceOpened
    | ExtendSequence
    | ReleaseSequences
    | SequencesReleased
    | SequenceFailed
    | WorkerStats
    | Tokens
    | Rows
    | Feed
    | Credit
    | PlannerHello
    | PlanAsk
    | PlanAnswer
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)
_VERSION = bytes([PROTOCOL])


def encode(message: Message) -> bytes:
    return _VERSION + _encoder.encode(message)


def decode(frame: bytes | memoryview) -> AnyMessage:
    """Raises ProtocolError for anything that is not a message of this protocol version."""
    view = memoryview(frame)
    if len(view) < 2 or view[0] != PROTOCOL:
        got = f"version {view[0]}" if len(view) else "an empty frame"
        raise ProtocolError(f"a peer speaks another protocol: got {got}, expected version {PROTOCOL}")
    try:
        return _decoder.decode(view[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed message from a peer: {error}") from error
