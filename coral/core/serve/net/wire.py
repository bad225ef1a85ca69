"""Every message that crosses a socket, and how it is framed.

A message is one frame: a protocol byte, then msgpack of a tagged Struct. Data-plane messages have a
second frame, the payload (see `channel`). Nothing else is ever decoded.

Who talks to whom (all sockets are ZeroMQ)::

    agent, planner ── DEALER ──► coordinator ROUTER (control)
    scheduler      ── DEALER ──► coordinator ROUTER (control)
    worker         ── DEALER ──► scheduler ROUTER (control of the instance)
    last worker    ── PUSH   ──► coordinator PULL (tokens)
    worker         ── DEALER ──► worker ROUTER (data: rows, fed tokens, KV; credit comes back)
"""

from __future__ import annotations

import msgspec

from coral.core.serve.net.messages.agent import (
    AgentHello,
    Join,
    Joined,
    JoinRefused,
    ProcessExited,
    ProcessStarted,
    ProcessStatus,
    StartProcess,
    StopProcess,
)
from coral.core.serve.net.messages.base import Heartbeat, Message, Shutdown
from coral.core.serve.net.messages.data import Credit, FedToken, Feed, OpenPath, Rows, RowsPart, Tokens
from coral.core.serve.net.messages.handover import (
    Begun,
    GoOn,
    HandedOver,
    HandOver,
    Kv,
    KvArrived,
    KvAwaited,
    KvDestination,
    KvNode,
    KvPart,
    KvSent,
    ResumeSequence,
    SendKv,
)
from coral.core.serve.net.messages.instance import (
    Abort,
    AskStats,
    Drain,
    Drained,
    InstanceFailed,
    InstanceProgress,
    InstanceReady,
    InstanceStats,
    RequestLost,
    RequestRefused,
    RunInstance,
    SchedulerHello,
    Submit,
)
from coral.core.serve.net.messages.planner import PlanAnswer, PlanAsk, PlannerHello
from coral.core.serve.net.messages.worker import (
    ExtendSequence,
    LoadStage,
    OpenSequence,
    Reaching,
    ReleaseSequences,
    SequenceFailed,
    SequenceOpened,
    SequencesReleased,
    StageLoaded,
    Wire,
    Wired,
    WorkerFailed,
    WorkerHello,
    WorkerStats,
)
from coral.errors import ProtocolError

__all__ = [
    "PROTOCOL",
    "Abort",
    "AgentHello",
    "AnyMessage",
    "AskStats",
    "Begun",
    "Credit",
    "Drain",
    "Drained",
    "ExtendSequence",
    "FedToken",
    "Feed",
    "GoOn",
    "HandOver",
    "HandedOver",
    "Heartbeat",
    "InstanceFailed",
    "InstanceProgress",
    "InstanceReady",
    "InstanceStats",
    "Join",
    "JoinRefused",
    "Joined",
    "Kv",
    "KvArrived",
    "KvAwaited",
    "KvDestination",
    "KvNode",
    "KvPart",
    "KvSent",
    "LoadStage",
    "Message",
    "OpenPath",
    "OpenSequence",
    "OtherProtocol",
    "PlanAnswer",
    "PlanAsk",
    "PlannerHello",
    "ProcessExited",
    "ProcessStarted",
    "ProcessStatus",
    "Reaching",
    "ReleaseSequences",
    "RequestLost",
    "RequestRefused",
    "ResumeSequence",
    "Rows",
    "RowsPart",
    "RunInstance",
    "SchedulerHello",
    "SendKv",
    "SequenceFailed",
    "SequenceOpened",
    "SequencesReleased",
    "Shutdown",
    "StageLoaded",
    "StartProcess",
    "StopProcess",
    "Submit",
    "Tokens",
    "Wire",
    "Wired",
    "WorkerFailed",
    "WorkerHello",
    "WorkerStats",
    "decode",
    "encode",
]

PROTOCOL = 1

AnyMessage = (
    Heartbeat
    | Shutdown
    | AgentHello
    | Join
    | Joined
    | JoinRefused
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
    | Reaching
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
    | OpenPath
    | Begun
    | KvAwaited
    | HandOver
    | HandedOver
    | GoOn
    | SendKv
    | KvSent
    | KvArrived
    | ResumeSequence
    | Kv
    | PlannerHello
    | PlanAsk
    | PlanAnswer
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)
_VERSION = bytes([PROTOCOL])


def encode(message: Message) -> bytes:
    return _VERSION + _encoder.encode(message)


class OtherProtocol(ProtocolError):
    """A peer speaks another version of the protocol, or none at all."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"a peer speaks another protocol: got version {version}, expected version {PROTOCOL}",
            mend="install the same version of Coral on both machines",
        )
        self.version = version


def decode(frame: bytes | memoryview) -> AnyMessage:
    """Raises ProtocolError for anything that is not a message, OtherProtocol for one of another version."""
    view = memoryview(frame)
    if len(view) < 2:
        raise ProtocolError("an empty frame from a peer")
    if view[0] != PROTOCOL:
        raise OtherProtocol(view[0])
    try:
        return _decoder.decode(view[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed message from a peer: {error}") from error
