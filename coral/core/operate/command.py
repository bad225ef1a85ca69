"""What the scheduler's decisions ask its driver to do, each naming where it goes."""

from __future__ import annotations

from dataclasses import dataclass

from coral.types.handover import KvDestination
from coral.types.request import GenerateRequest, Leg


@dataclass(frozen=True, slots=True)
class Open:
    """To `node`: open this attempt and reserve; at stage 0 also start it, unless it is a decode leg."""

    node: str
    request: GenerateRequest
    attempt: int
    reserve: int
    route: tuple[str, ...]
    leg: Leg = "whole"


@dataclass(frozen=True, slots=True)
class Extend:
    """To `node`: hold `reserve` tokens in all."""

    node: str
    request: str
    attempt: int
    reserve: int


@dataclass(frozen=True, slots=True)
class Release:
    """To `node`: free these (request, attempt) pairs, and say so after their last tokens."""

    node: str
    sequences: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SendKv:
    """To `node`: send the KV of this attempt there; what is computed at once, the rest as it comes."""

    node: str
    request: str
    attempt: int
    to: KvDestination


@dataclass(frozen=True, slots=True)
class Resume:
    """To `node`: its KV is complete, these tokens were sampled elsewhere; at stage 0 also start it."""

    node: str
    request: str
    attempt: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """To the coordinator: a prefill leg runs; a destination for its KV is wanted."""

    request: str


@dataclass(frozen=True, slots=True)
class Await:
    """To the coordinator: a decode leg is open on its whole route, which expects its KV."""

    request: str
    attempt: int
    route: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """To the coordinator: all KV of a prefill leg is with its receivers; it has left."""

    request: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """To the coordinator: never taken. `status` 400 (cannot be served here) or 503 (not now)."""

    request: str
    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lose:
    """To the coordinator: was taken, cannot be finished here; it may go on elsewhere."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """To the coordinator: asked to drain, and the last sequence has left."""


ToNode = Open | Extend | Release | SendKv | Resume
Command = ToNode | Begin | Await | HandedOver | Refuse | Lose | Drained
