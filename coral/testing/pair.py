"""A prefill and a decode instance for tests, and a coordinator's part between them.

Both instances are entered and left by whoever made them; one may be in several pairs::

    with InstanceUnderTest(...) as prefill, InstanceUnderTest(...) as decode:
        answers = Pair(prefill, decode).generate([request])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from coral.core.serve.net import wire
from coral.testing.instance import Answer, InstanceFault, InstanceUnderTest
from coral.types.handover import KvDestination
from coral.types.request import GenerateRequest


class Pair:
    """Plays the coordinator as `coral.core.serve.net.messages.handover` draws it."""

    def __init__(self, prefill: InstanceUnderTest, decode: InstanceUnderTest) -> None:
        self.prefill = prefill
        self.decode = decode
        self.requests: dict[str, GenerateRequest] = {}
        self.answers: dict[str, Answer] = {}
        self.handed: set[str] = set()
        """Requests whose prefill leg has left with all KV handed over."""
        self.awaited: dict[str, KvDestination] = {}
        """Where the KV of a request was last wanted."""
        self.asked: set[str] = set()
        """Requests for which the decode instance was asked."""
        self.hands_over = True
        """False: the prefill instance is never told where KV goes."""
        self._told: set[str] = set()

    def submit(self, request: GenerateRequest) -> None:
        first = msgspec.structs.replace(request.sampling, max_tokens=len(request.generated) + 1)
        self.requests[request.id] = request
        self.answers[request.id] = Answer(tokens=list(request.generated), received=[])
        self.prefill.submit(msgspec.structs.replace(request, sampling=first), leg="prefill")

    def abort(self, *requests: str) -> None:
        """The client has left: both legs end."""
        self.prefill.abort(*requests)
        self.decode.abort(*requests)

    def generate(self, requests: Iterable[GenerateRequest], *, timeout_s: float = 120.0) -> dict[str, Answer]:
        """Submit all and wait for the last."""
        asked = list(requests)
        for request in asked:
            self.submit(request)
        self.wait(lambda: all(self.answers[r.id].ended for r in asked), timeout_s, "all answers")
        return {r.id: self.answers[r.id] for r in asked}

    def settled(self, timeout_s: float = 30.0) -> None:
        """Wait until neither instance holds anything."""
        for instance in (self.prefill, self.decode):
            instance.settled(timeout_s)
        self.serve(0)

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Serve both until the condition holds; raises InstanceFault when it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                ended = {name: (a.finish, a.error, len(a.tokens)) for name, a in self.answers.items()}
                raise InstanceFault(
                    f"not {what} within {timeout_s:g} s: {ended}\n"
                    f"{self.prefill.stats}\n{self.decode.stats}\n{self.prefill.said()}\n{self.decode.said()}"
                )
            self.serve(0.01)

    def serve(self, seconds: float) -> None:
        for instance in (self.prefill, self.decode):
            instance.serve(seconds / 2)
        self._relay()

    def hand_over(self, request: str, to: KvDestination) -> None:
        """The prefill leg is told where its KV goes."""
        self.prefill.send(wire.HandOver(request=request, to=to))

    def _relay(self) -> None:
        said = self.prefill.said_of_kv
        while said:
            message = said.popleft()
            if isinstance(message, wire.Begun) and not self._over(message.request):
                self._begun(message.request)
            elif isinstance(message, wire.HandedOver):
                self.handed.add(message.request)
        said = self.decode.said_of_kv
        while said:
            message = said.popleft()
            if isinstance(message, wire.KvAwaited):
                self.awaited[message.request] = message.to
                if self.hands_over and not self._over(message.request):
                    self.hand_over(message.request, message.to)
        for name, request in self.requests.items():
            self._collect(name, request)

    def _begun(self, name: str) -> None:
        request = self.requests[name]
        if request.sampling.max_tokens - len(request.generated) > 1 and name not in self.asked:
            self.asked.add(name)
            self.decode.submit(request, leg="decode")

    def _collect(self, name: str, request: GenerateRequest) -> None:
        """Put the tokens of both legs together; tell the decode leg what the prefill leg sampled."""
        answer, first = self.answers[name], self.prefill.answers[name]
        if answer.ended:
            return
        known = len(request.generated)
        if len(first.tokens) > known and name not in self._told:
            self._told.add(name)
            answer.tokens, answer.received = list(first.tokens), list(first.received)
            if first.finish == "stop" or request.sampling.max_tokens == known + 1:
                answer.finish = first.finish
                self.abort(name)
                return
            self.decode.send(wire.GoOn(request=name, tokens=tuple(first.tokens[known:])))
        later = self.decode.answers.get(name)
        if first.error or (later is not None and later.error):
            lost = first if first.error else later
            assert lost is not None
            answer.error, answer.status = lost.error, lost.status
            self.abort(name)
        elif later is not None and name in self._told:
            received = {t.position: t for t in (*later.received, *first.received)}
            while (following := received.get(len(answer.tokens))) is not None:
                answer.tokens.append(following.token)
                answer.received.append(following)
                answer.finish = following.finish or answer.finish

    def _over(self, name: str) -> bool:
        """It has ended, or somebody else has asked for it."""
        return name not in self.answers or self.answers[name].ended
