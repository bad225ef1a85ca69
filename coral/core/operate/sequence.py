"""One request as the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from coral.types.handover import KvDestination
from coral.types.request import FinishReason, GenerateRequest, Leg


class SequenceState(Enum):
    WAITING = "waiting"
    """Holds nothing."""
    OPENING = "opening"
    """Blocks are reserved; the nodes of the route are told in turn, stage 0 last (a decode leg: all)."""
    AWAITING = "awaiting"
    """Decode leg: every node of the route holds it, and its KV is on the way."""
    RESUMING = "resuming"
    """Decode leg: its KV is there; later stages are told what was sampled elsewhere."""
    RUNNING = "running"
    HANDING = "handing"
    """Prefill leg: its token is sampled; blocks stay until its KV is with its receivers."""
    RELEASING = "releasing"
    """The nodes of the route give back; blocks count as held until the last of them has said so."""


class Next(Enum):
    """What becomes of a sequence once its route has released it."""

    END = "end"
    RESUME = "resume"
    LOSE = "lose"
    HANDED = "handed"


@dataclass(slots=True, eq=False)
class LiveSequence:
    request: GenerateRequest
    arrival: int
    """Order of arrival at this instance; kept over preemptions. The youngest has the highest."""
    generated: list[int]
    leg: Leg = "whole"
    state: SequenceState = SequenceState.WAITING
    attempt: int = -1
    route: tuple[str, ...] = ()
    reserved: int = 0
    unopened: set[str] = field(default_factory=set)
    """Nodes that have not opened (or resumed) it yet."""
    told: tuple[str, ...] = ()
    """Nodes that were told to open this attempt."""
    unreleased: set[str] = field(default_factory=set)
    begun: bool = False
    """Prefill leg: the coordinator knows that its prompt runs."""
    awaited: bool = False
    """Decode leg: the coordinator knows where its KV is awaited."""
    destination: KvDestination | None = None
    """Prefill leg: where its KV goes."""
    handed: tuple[int, ...] | None = None
    """Decode leg: what the prefill leg sampled."""
    lacking: set[str] = field(default_factory=set)
    """Nodes that have not sent all KV to the destination, or that have not got all of it."""
    overtaken: int = 0
    """Tokens reserved by those that went ahead of it while it waited."""
    preempted: bool = False
    """It waits once more, after a preemption."""
    still_since_s: float | None = None
    """Since when it waits for its peer and nothing has come; None until the clock is looked at."""
    finish: FinishReason | None = None
    next: Next = Next.END
    reason: str = ""

    @classmethod
    def of(cls, request: GenerateRequest, arrival: int, leg: Leg = "whole") -> LiveSequence:
        return cls(request, arrival, list(request.generated), leg)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def rank(self) -> tuple[float, int]:
        """By priority, then by arrival: the first goes first and is preempted last."""
        return -self.request.priority, self.arrival

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

    def learn_handed(self) -> None:
        """What the prefill leg sampled counts as generated, once."""
        if self.handed is not None and len(self.generated) == len(self.request.generated):
            self.generated.extend(self.handed)
