"""Stage 0: makes batches of token ids, and is fed what the last stage samples."""

from __future__ import annotations

from coral.core.operate.batching import FirstStageBatching
from coral.core.operate.pace import ChunkPace
from coral.core.serve.net.channel import Channel, Received
from coral.core.serve.net.messages.data import Feed
from coral.core.serve.net.messages.handover import ResumeSequence
from coral.core.serve.net.messages.worker import ExtendSequence, OpenSequence
from coral.core.serve.worker.outlet import Outlet
from coral.core.serve.worker.stage import StageAtWork
from coral.errors import ProtocolError
from coral.hookspecs.engine import StageRunner
from coral.types.stage import Chunk, StageSpec


class FirstStage(StageAtWork):
    def __init__(self, spec: StageSpec, runner: StageRunner, outlet: Outlet, channel: Channel) -> None:
        super().__init__(spec, runner, outlet, channel)
        self._batching = FirstStageBatching(
            step_tokens=spec.max_step_tokens, step_requests=spec.max_step_requests, stages=spec.stages
        )
        self._pace = ChunkPace(spec.step_target_s)
        self._ran_of = (0, 0)
        """Prompt tokens and decode rows of the step that runs."""
        self._prompt: dict[str, int] = {}

    @property
    def ready(self) -> bool:
        return self._batching.ready

    def arrive(self, received: Received) -> None:
        if not isinstance(received.header, Feed):
            raise ProtocolError(f"stage 0 was sent {type(received.header).__name__}")
        for fed in received.header.tokens:
            if not self._is_open(fed.request, fed.attempt):
                continue  # released meanwhile
            expected = self._batching.known(fed.request) - self._prompt[fed.request]
            if fed.position != expected:
                raise ProtocolError(f"{fed.request}: fed token {fed.position}, expected {expected}")
            self._runner.feed(fed.request, fed.token)
            self._batching.feed(fed.request, fed.token)

    def _opened(self, message: OpenSequence) -> None:
        request = message.request
        self._prompt[request.id] = len(request.prompt_ids)
        known = [*request.prompt_ids, *request.generated]
        self._batching.open(request.id, known, message.reserve, leg=message.leg)

    def _resumed(self, message: ResumeSequence) -> None:
        for token in message.tokens:
            self._batching.feed(message.request, token)

    def _extended(self, message: ExtendSequence) -> None:
        self._batching.extend(message.request, message.reserve)

    def _closed(self, request: str) -> None:
        self._batching.close(request)
        del self._prompt[request]

    def _batch(self) -> list[Chunk]:
        pieces = self._batching.next(self._pace.limit())
        rows = sum(piece.decode for piece in pieces)
        self._ran_of = (sum(len(piece.tokens) for piece in pieces) - rows, rows)
        return self._ordered(
            [Chunk(request=p.request, start=p.start, n=len(p.tokens), token_ids=p.tokens) for p in pieces]
        )

    def _ran(self, seconds: float) -> None:
        self._pace.ran(*self._ran_of, seconds)

    def _known_here(self, request: str, token: int) -> None:
        self._batching.feed(request, token)
