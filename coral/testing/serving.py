"""A `Serving` without instances: it answers each request with tokens that a test wrote down, in steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from coral.core.serve.coordinator.serving import ServedModel, TokenSink
from coral.errors import RequestError, StoreError
from coral.types.request import FinishReason, GenerateRequest, Token, TokenLogprob


class Reply(Struct, frozen=True, kw_only=True):
    """`tokens` are generated `per_step` at a time, at most `max_tokens` of them, the last with `finish`.

    `error`: is told after them, instead. `hang`: nothing follows, ever. `top`: log probabilities to report.
    """

    tokens: tuple[int, ...]
    finish: FinishReason = "stop"
    per_step: int = 1
    error: RequestError | None = None
    hang: bool = False
    top: tuple[TokenLogprob, ...] = ()


class _Run:
    def __init__(self, request: GenerateRequest, sink: TokenSink, reply: Reply) -> None:
        self.request = request
        self.sink = sink
        self.reply = reply
        self.position = 0


class ScriptedServing:
    """Steps of all requests happen together, every `step_s` seconds, as in an engine.

    `refuse`: what `submit` raises, from sequence `refuse_from` of a request on. `submitted` and
    `aborted` (id to loop time) are for a test to look at, and so is `stalled`, ids of those given up.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        reply: Callable[[GenerateRequest], Reply],
        *,
        step_s: float = 0.001,
    ) -> None:
        self.served = list(models)
        self.reply = reply
        self.step_s = step_s
        self.refuse: Exception | None = None
        self.refuse_from = 0
        self.submitted: list[GenerateRequest] = []
        self.aborted: dict[str, float] = {}
        self.stalled: set[str] = set()
        self.turned_from: list[str] = []
        self._runs: dict[str, _Run] = {}
        self._ticking = False

    def models(self) -> Sequence[ServedModel]:
        return self.served

    def state(self) -> dict[str, object]:
        return {"in_flight": len(self._runs)}

    async def plans(self, newest: int) -> list[dict[str, object]]:
        return []

    async def past_plan(self, number: int) -> dict[str, object]:
        raise StoreError(f"no plan {number} is kept")

    def submit(self, request: GenerateRequest, sink: TokenSink) -> None:
        if self.refuse is not None and int(request.id.rpartition("-")[2]) >= self.refuse_from:
            raise self.refuse
        self.submitted.append(request)
        self._runs[request.id] = _Run(request, sink, self.reply(request))
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(self.step_s, self._step)

    def turned_away(self, model: str) -> None:
        self.turned_from.append(model)

    def abort(self, request: str, *, stalled: bool = False) -> None:
        if self._runs.pop(request, None) is not None:
            self.aborted[request] = asyncio.get_running_loop().time()
            if stalled:
                self.stalled.add(request)

    @property
    def running(self) -> int:
        return len(self._runs)

    def _step(self) -> None:
        started = time.monotonic()
        for run in list(self._runs.values()):
            if run.request.id in self._runs:
                self._advance(run)
        self._ticking = bool(self._runs)
        if self._ticking:
            rest_s = max(0.0, self.step_s - (time.monotonic() - started))
            asyncio.get_running_loop().call_later(rest_s, self._step)

    def _advance(self, run: _Run) -> None:
        reply, request = run.reply, run.request
        sampling = request.sampling
        tokens: list[Token] = []
        end = min(len(reply.tokens), sampling.max_tokens)
        while run.position < end and len(tokens) < reply.per_step:
            last = run.position == end - 1
            finish = None
            if last and reply.error is None and not reply.hang:
                finish = "length" if end < len(reply.tokens) else reply.finish
            tokens.append(self._token(run, reply.tokens[run.position], finish))
            run.position += 1
        if tokens:
            if tokens[-1].finish is not None:
                del self._runs[request.id]
            run.sink.on_tokens(tokens)
        elif reply.error is not None:
            del self._runs[request.id]
            run.sink.on_error(reply.error)

    def _token(self, run: _Run, token: int, finish: FinishReason | None) -> Token:
        wanted = run.request.sampling.logprobs
        return Token(
            request=run.request.id,
            attempt=0,
            position=run.position,
            token=token,
            finish=finish,
            logprob=None if wanted is None else -0.5,
            top=run.reply.top[: wanted or 0],
        )
