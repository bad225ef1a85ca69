"""One request in the system, and its legs: what instances do of it."""

from __future__ import annotations

import msgspec

from coral.core.serve.coordinator.serving import TokenSink
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import KvDestination, Submit
from coral.hookspecs.router import Candidate, RouteRequest
from coral.types.request import GenerateRequest, Leg, Token

HAND_OVERS = 3
"""Hand-overs of one request that may fail before one instance serves it whole."""
ATTEMPT_MARK = "~"
"""Between a request's id and the number of its attempt, from the second on."""


class LiveLeg:
    """What one instance does of a flight. `need`: tokens of KV that it is expected to take there.

    `promised`: of a prefill leg, what the decode leg that will follow it is expected to take; 0 once
    there is one. `proved`: a token has come from it. `handed_over`: of a prefill leg, its scheduler has
    said so. `to`: of a decode leg, where it expects the KV, once it does.
    """

    __slots__ = ("candidate", "handed_over", "kind", "need", "promised", "proved", "target", "to")

    def __init__(self, kind: Leg, target: Target, candidate: Candidate, need: int) -> None:
        self.kind = kind
        self.target = target
        self.candidate = candidate
        self.need = need
        self.promised = 0
        self.proved = False
        self.handed_over = False
        self.to: KvDestination | None = None


class Flight:
    """`first`: the leg that has the prompt: the whole, or the prefill leg. `second`: the decode leg.

    Every start from the prompt is an attempt, with a name of its own on the wire: what is said of an
    earlier one, maybe by the same instance, is not taken for the present one. `base`: tokens
    that were generated before the attempt. Times are monotonic seconds.
    """

    __slots__ = (
        "attempt",
        "avoided",
        "base",
        "broken_hand_overs",
        "early",
        "first",
        "generated",
        "giver",
        "moves",
        "owes",
        "reason",
        "request",
        "route",
        "second",
        "sink",
        "started",
    )

    def __init__(self, request: GenerateRequest, sink: TokenSink, started: float) -> None:
        self.request = request
        self.sink = sink
        self.started = started
        self.route = RouteRequest(
            id=request.id,
            model=request.model,
            prompt_ids=request.prompt_ids,
            max_tokens=request.sampling.max_tokens,
        )
        self.generated = list(request.generated)
        self.early: dict[int, Token] = {}
        self.attempt = 0
        self.base = len(self.generated)
        self.first: LiveLeg | None = None
        self.second: LiveLeg | None = None
        self.giver = ""
        """The instance from which the decode leg has its KV, once that has left there."""
        self.broken_hand_overs = 0
        """Legs that have failed while its KV was to go from one to the other."""
        self.moves = 0
        """How often it had to go elsewhere."""
        self.owes = False
        """Where it goes next costs the retry budget."""
        self.reason = ""
        """Why it had to leave its last instance."""
        self.avoided: dict[str, float] = {}
        """Instances that have failed with it, each with the time until which it does not go there."""

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def name(self) -> str:
        """On the wire."""
        return f"{self.request.id}{ATTEMPT_MARK}{self.attempt}" if self.attempt else self.request.id

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.request.sampling.max_tokens - len(self.generated)

    @property
    def may_hand_over(self) -> bool:
        """Whether it is still worth while to try."""
        return self.broken_hand_overs < HAND_OVERS

    @property
    def legs(self) -> list[LiveLeg]:
        return [leg for leg in (self.first, self.second) if leg is not None]

    def leg_at(self, instance: str) -> LiveLeg | None:
        first, second = self.first, self.second
        if first is not None and first.target.instance == instance:
            return first
        if second is not None and second.target.instance == instance:
            return second
        return None

    def begin_attempt(self) -> None:
        """It starts from the prompt and all tokens so far."""
        self.attempt += 1
        self.base = len(self.generated)
        self.giver = ""
        self.early.clear()

    def submit(self, kind: Leg, target: Target) -> Submit:
        """What the instance is sent. A prefill leg ends after one token; a decode leg knows what the prefill
        leg began with, and is told of what that has sampled later."""
        request = target.fitted(self.request)
        if kind == "prefill":
            sampling = msgspec.structs.replace(request.sampling, max_tokens=self.base + 1)
            request = msgspec.structs.replace(request, sampling=sampling)
        if self.attempt or self.base != len(request.generated):
            generated = tuple(self.generated[: self.base])
            request = msgspec.structs.replace(request, id=self.name, generated=generated)
        return Submit(request=request, leg=kind)

    def own(self, token: Token, leg: LiveLeg) -> Token:
        """A token as it is of the whole request: that the prefill leg ends by it says nothing of that."""
        if leg.kind == "prefill" and token.finish == "length" and self.left > 1:
            return msgspec.structs.replace(token, finish=None)
        return token
