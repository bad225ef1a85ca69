"""An instance as requests see it: whether one fits there, and how to send it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coral.core.serve.net.wire import InstanceStats, Message
from coral.hookspecs.router import Candidate
from coral.types.request import GenerateRequest


class Target:
    """An instance that takes requests. `send` is False where its scheduler cannot be reached.

    `max_request_tokens`: prompt and output together, the most it can hold of one request: instances of
    a model differ in it. `expected_output_tokens`: what an answer of unlimited length is given room for.
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
    ) -> None:
        self.instance = instance
        self.model = model
        self.weight = weight
        self.send = send
        self.max_request_tokens = max_request_tokens
        self.expected_output_tokens = expected_output_tokens
        self.running = 0
        self.stats: InstanceStats | None = None

    def holds(self, request: GenerateRequest, generated: int) -> bool:
        """Whether it has room for the whole request, of which `generated` tokens are there already."""
        sampling = request.sampling
        output = sampling.max_tokens
        if request.open_ended:
            output = min(output, max(self.expected_output_tokens, sampling.min_tokens, generated + 1))
        return len(request.prompt_ids) + output <= self.max_request_tokens

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
        if self.stats is not None:
            waiting = self.stats.waiting
            shares = [n.free_blocks / n.total_blocks for n in self.stats.nodes.values() if n.total_blocks]
            free = min(shares, default=1.0)
        return Candidate(
            id=self.instance, weight=self.weight, running=self.running, waiting=waiting, free_kv=free
        )
