"""An instance as requests see it: whether one fits there, whether it is taken soon, and how to send it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coral.core.operate.breaker import Breaker
from coral.core.serve.net.wire import InstanceStats, Message
from coral.hookspecs.router import Candidate
from coral.types.hardware import Domain
from coral.types.model import Phase
from coral.types.request import GenerateRequest, Leg
from coral.types.reservation import ReservationRule

REFUSED_S = 1.0
"""How long one that has refused a request for want of room is taken to be full; its next stats end it."""
WAITING = 4
"""Requests that may wait at a scheduler before others are kept here: enough that it never runs dry."""


class Target:
    """An instance that takes requests. `send` is False where its scheduler cannot be reached.

    `max_request_tokens`: prompt and output together, the most it can hold of one request: instances of
    a model differ in it. `expected_output_tokens`: what an answer of unlimited length is given room for.
    `kv_tokens`: tokens of KV that it can hold. `weight`: requests per second, whatever its phase.
    """

    def __init__(
        self,
        instance: str,
        model: str,
        weight: float,
        send: Callable[[Message], bool],
        *,
        max_request_tokens: int,
        expected_output_tokens: int,
        kv_tokens: int,
        domain: Domain,
        phase: Phase = "mixed",
    ) -> None:
        self.instance = instance
        self.model = model
        self.weight = weight
        self.send = send
        self.max_request_tokens = max_request_tokens
        self.expected_output_tokens = expected_output_tokens
        self.kv_tokens = kv_tokens
        self.domain = domain
        self.phase = phase
        self.breaker = Breaker()
        self.running = 0
        """Legs of requests that are there."""
        self.held_tokens = 0
        """KV that those legs were expected to need when they were sent."""
        self._rule = ReservationRule(expected_output_tokens=expected_output_tokens)
        self._stats: InstanceStats | None = None
        self._full_until = 0.0

    def heard(self, stats: InstanceStats) -> None:
        self._stats = stats
        self._full_until = 0.0

    def refused(self, now: float) -> None:
        """It had no room for one."""
        self._full_until = now + REFUSED_S

    # ------------------------------------------------------------ room

    def holds(self, request: GenerateRequest, generated: int, leg: Leg = "whole") -> bool:
        """Whether it has room for the whole of a leg, of which `generated` tokens are there already."""
        if leg == "prefill":
            return len(request.prompt_ids) + generated + 1 <= self.max_request_tokens
        sampling = request.sampling
        output = sampling.max_tokens
        if request.open_ended:
            output = min(output, max(self.expected_output_tokens, sampling.min_tokens, generated + 1))
        return len(request.prompt_ids) + output <= self.max_request_tokens

    def need(self, request: GenerateRequest, generated: int, leg: Leg) -> int:
        """Tokens of KV that its scheduler reserves for the leg at admission."""
        known = len(request.prompt_ids) + generated
        left = 1 if leg == "prefill" else request.sampling.max_tokens - generated
        return self._rule.reserve(known, left)

    def takes(self, now: float) -> bool:
        """Whether a request that goes there now runs soon: one may wait there for the room that comes free
        next. Where it is full, or has failed too often of late, requests go elsewhere, or wait."""
        if self.held_tokens >= self.kv_tokens or now < self._full_until:
            return False
        if self._stats is not None and self._stats.waiting >= WAITING:
            return False
        return self.breaker.allows(now)

    # ------------------------------------------------------------ sending

    def fitted(self, request: GenerateRequest) -> GenerateRequest:
        """One without a limit of its own is cut to the room here."""
        room = self.max_request_tokens - len(request.prompt_ids)
        if not request.open_ended or request.sampling.max_tokens <= room:
            return request
        return msgspec.structs.replace(
            request, sampling=msgspec.structs.replace(request.sampling, max_tokens=room)
        )

    def candidate(self) -> Candidate:
        waiting, free = 0, 1.0
        if self._stats is not None:
            waiting = self._stats.waiting
            shares = [n.free_blocks / n.total_blocks for n in self._stats.nodes.values() if n.total_blocks]
            free = min(shares, default=1.0)
        return Candidate(
            id=self.instance, weight=self.weight, running=self.running, waiting=waiting, free_kv=free
        )
