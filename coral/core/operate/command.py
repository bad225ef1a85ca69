"""What the scheduler's decisions ask its driver to do, each naming where it goes."""

from __future__ import annotations

from dataclasses import dataclass

from coral.types.request import GenerateRequest


@dataclass(frozen=True, slots=True)
class Open:
    """To `node`: open this attempt and reserve; at stage 0 also start it."""

    node: str
    request: GenerateRequest
    attempt: int
    reserve: int
    route: tuple[str, ...]


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


Command = Open | Extend | Release | Refuse | Lose | Drained
