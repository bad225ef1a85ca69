"""One request as the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from coral.types.request import FinishReason, GenerateRequest


class SequenceState(Enum):
    WAITING = "waiting"
    """Holds nothing."""
    OPENING = "opening"
    """Blocks are reserved; the nodes of the route are told in turn, stage 0 last."""
    RUNNING = "running"
    RELEASING = "releasing"
    """The nodes of the route give back; blocks count as held until the last of them has said so."""


class Next(Enum):
    """What becomes of a sequence once its route has released it."""

    END = "end"
    RESUME = "resume"
    LOSE = "lose"


@dataclass(slots=True, eq=False)
class LiveSequence:
    request: GenerateRequest
    arrival: int
    """Order of arrival at this instance; kept over preemptions. The youngest has the highest."""
    generated: list[int]
    state: SequenceState = SequenceState.WAITING
    attempt: int = -1
    route: tuple[str, ...] = ()
    reserved: int = 0
    unopened: set[str] = field(default_factory=set)
    """Later stages that have not opened it yet."""
    told: tuple[str, ...] = ()
    """Nodes that were told to open this attempt."""
    unreleased: set[str] = field(default_factory=set)
    finish: FinishReason | None = None
    next: Next = Next.END
    reason: str = ""

    @classmethod
    def of(cls, request: GenerateRequest, arrival: int) -> LiveSequence:
        return cls(request, arrival, list(request.generated))

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def known(self) -> int:
        return len(self.request.prompt_ids) + len(self.generated)

    @property
    def total(self) -> int:
        """The most tokens it can come to."""
        return len(self.request.prompt_ids) + self.request.sampling.max_tokens

    @property
    def left(self) -> int:
        return self.request.sampling.max_tokens - len(self.generated)

    def resumed(self) -> GenerateRequest:
        """The request as a node must be given it now: with all that was generated so far."""
        return msgspec.structs.replace(self.request, generated=tuple(self.generated))
