"""Worker and scheduler."""

from __future__ import annotations

from coral.core.serve.net.messages.base import Message
from coral.types.request import GenerateRequest, Leg
from coral.types.stage import EngineStats, KvCapacity, StageSpec


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
    senders: tuple[str, ...] = ()
    """The nodes that send to this one; what comes of anybody else is dropped."""
    tokens_address: str = ""
    """Not empty: where the last stage pushes tokens from now on (the coordinator has come back)."""


class Reaching(Message, frozen=True, kw_only=True, tag="reaching"):
    """Said again and again until `Wired`: peers of `Wire` to which nothing goes through yet."""

    node: str
    unreached: tuple[str, ...]


class Wired(Message, frozen=True, kw_only=True, tag="wired"):
    """Every peer of `Wire` is reached."""

    node: str


class OpenSequence(Message, frozen=True, kw_only=True, tag="open"):
    """`route[s]` is the node of stage s. Sent to later stages first; stage 0 starts when it gets it.

    A decode leg is opened on all nodes at once, answered by all of them, and starts by `ResumeSequence`.
    """

    request: GenerateRequest
    attempt: int
    reserve: int
    route: tuple[str, ...]
    leg: Leg = "whole"


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
