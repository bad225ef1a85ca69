"""A stage at work: sequences open here, batches run here, results go on. The same for every engine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coral.core.serve.net.channel import Channel, Received, ReceivedKv
from coral.core.serve.net.messages.data import FedToken, RowsPart
from coral.core.serve.net.messages.handover import ResumeSequence, SendKv
from coral.core.serve.net.messages.worker import (
    ExtendSequence,
    OpenSequence,
    ReleaseSequences,
    SequenceFailed,
    SequenceOpened,
    SequencesReleased,
)
from coral.core.serve.worker.kv.receiving import KvReceiving
from coral.core.serve.worker.kv.sending import KvSending
from coral.core.serve.worker.outlet import Outlet
from coral.errors import CoralError, EngineError
from coral.hookspecs.engine import StageRunner
from coral.types.request import Token
from coral.types.stage import Chunk, Sampled, StageSpec


@dataclass(slots=True, eq=False)
class OpenHere:
    """A sequence that this node holds."""

    attempt: int
    route: tuple[str, ...]
    next: str
    """Its node of the next stage; empty at the last."""
    known: int
    """Tokens that were known when it was opened."""
    done: int = 0
    """Tokens that have run here; of a decode leg those that ran after its KV had come."""


class StageAtWork(ABC):
    """What first and later stages share. Used by one thread."""

    def __init__(self, spec: StageSpec, runner: StageRunner, outlet: Outlet, channel: Channel) -> None:
        self._spec = spec
        self._runner = runner
        self._outlet = outlet
        self._open: dict[str, OpenHere] = {}
        self._leaving: list[tuple[str, int]] = []
        """Released, and still read by those that its KV goes to."""
        self._sending = KvSending(spec, runner, channel, outlet.say)
        self._receiving = KvReceiving(spec, runner, channel)

    @property
    @abstractmethod
    def ready(self) -> bool:
        """There is something to run."""

    @abstractmethod
    def arrive(self, received: Received) -> None:
        """A message from another node."""

    @abstractmethod
    def _opened(self, message: OpenSequence) -> None: ...

    @abstractmethod
    def _resumed(self, message: ResumeSequence) -> None: ...

    @abstractmethod
    def _extended(self, message: ExtendSequence) -> None: ...

    @abstractmethod
    def _closed(self, request: str) -> None: ...

    @abstractmethod
    def _batch(self) -> list[Chunk]: ...

    @abstractmethod
    def _ran(self, seconds: float) -> None:
        """The batch has run in the engine, so long; what it was made of is no longer needed."""

    @abstractmethod
    def _known_here(self, request: str, token: int) -> None:
        """The last stage sampled; only a stage that is first as well has use for it."""

    def open(self, message: OpenSequence) -> SequenceOpened:
        request, attempt = message.request.id, message.attempt
        error = ""
        if request in self._open:
            error = f"attempt {self._open[request].attempt} of it is still open"
        else:
            try:
                self._runner.open(message.request, message.reserve)
            except CoralError as refused:
                error = str(refused)
        if not error:
            last = self._spec.is_last
            onward = "" if last else message.route[self._spec.stage + 1]
            self._open[request] = OpenHere(attempt, message.route, onward, message.request.known)
            if message.leg == "decode":
                self._receiving.open(message)
            self._opened(message)
        return SequenceOpened(node=self._spec.node, request=request, attempt=attempt, error=error)

    def extend(self, message: ExtendSequence) -> SequenceFailed | None:
        """Reserve more; a stale attempt is ignored."""
        if not self._is_open(message.request, message.attempt):
            return None
        try:
            self._runner.extend(message.request, message.reserve)
        except CoralError as refused:
            return SequenceFailed(
                node=self._spec.node, request=message.request, attempt=message.attempt, reason=str(refused)
            )
        self._extended(message)
        return None

    def resume(self, message: ResumeSequence) -> SequenceOpened | None:
        """Its KV has come, and these tokens follow; a stale attempt is ignored."""
        if not self._is_open(message.request, message.attempt):
            return None
        error = ""
        try:
            self._runner.resume(message.request, message.tokens)
            self._resumed(message)
        except CoralError as refused:
            error = str(refused)
        return SequenceOpened(
            node=self._spec.node, request=message.request, attempt=message.attempt, error=error
        )

    def release(self, message: ReleaseSequences) -> None:
        """Free these, and say so: at once, or when nothing of them is under way to another instance."""
        freed = []
        for pair in message.sequences:
            request = pair[0]
            if self._is_open(*pair):
                self._closed(request)
                self._sending.stop(request)
                self._receiving.close(request)
                del self._open[request]
                if self._sending.leased(request):
                    self._leaving.append(pair)
                    continue
                self._runner.release([request])
            freed.append(pair)
        if freed:
            self._outlet.say(SequencesReleased(node=self._spec.node, sequences=tuple(freed)))

    # ------------------------------------------------------------ KV to and from other instances

    def send_kv(self, message: SendKv, now: float) -> None:
        """Its KV goes there from now on; a stale attempt is ignored."""
        if self._is_open(message.request, message.attempt):
            self._sending.start(message, self._open[message.request].known, now)

    def take_kv(self, received: ReceivedKv) -> None:
        said = self._receiving.arrive(received)
        if said is not None:
            self._outlet.say(said)

    def hand_over(self, now: float) -> bool:
        """Push what was computed meanwhile, and see to what is under way; True where more can be pushed
        at once. Called between steps."""
        if not self._sending.busy:
            return False
        more = self._sending.push(lambda request: self._open[request].done, now)
        self._sending.settle(now)
        gone = [pair for pair in self._leaving if not self._sending.leased(pair[0])]
        if gone:
            self._leaving = [pair for pair in self._leaving if pair not in gone]
            self._runner.release([request for request, _ in gone])
            self._outlet.say(SequencesReleased(node=self._spec.node, sequences=tuple(gone)))
        return more

    def close(self) -> None:
        """End the leases of what is under way."""
        self._sending.close()

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        """Run the next batch and send on what comes of it."""
        chunks = self._batch()
        if not chunks:
            return
        began = time.perf_counter()
        result = self._runner.step(chunks)
        seconds = time.perf_counter() - began
        for chunk in chunks:
            self._open[chunk.request].done = chunk.start + chunk.n
        if self._spec.is_last:
            self._send_tokens(result.sampled)
        else:
            hidden = result.hidden
            rows = sum(chunk.n for chunk in chunks)
            if hidden is None or hidden.shape[0] != rows:
                got = "none" if hidden is None else str(hidden.shape[0])
                raise EngineError(f"the engine was given {rows} rows and returned {got}")
            width = hidden.shape[1]
            data = memoryview(hidden.data).cast("B")
            row_bytes = data.nbytes // rows
            at = 0
            for to, parts in self._by_next_node(chunks):
                end = at + sum(part.n for part in parts)
                self._outlet.rows(to, parts, hidden.dtype, width, data[at * row_bytes : end * row_bytes])
                at = end
        self._ran(seconds)

    def _is_open(self, request: str, attempt: int) -> bool:
        held = self._open.get(request)
        return held is not None and held.attempt == attempt

    def _ordered(self, chunks: list[Chunk]) -> list[Chunk]:
        """Chunks for one next node stand together, so that their rows leave as one piece."""
        if not self._spec.is_last:
            chunks.sort(key=lambda chunk: self._open[chunk.request].next)
        return chunks

    def _by_next_node(self, chunks: Iterable[Chunk]) -> list[tuple[str, list[RowsPart]]]:
        grouped: list[tuple[str, list[RowsPart]]] = []
        for chunk in chunks:
            held = self._open[chunk.request]
            part = RowsPart(request=chunk.request, attempt=held.attempt, start=chunk.start, n=chunk.n)
            if not grouped or grouped[-1][0] != held.next:
                grouped.append((held.next, []))
            grouped[-1][1].append(part)
        return grouped

    def _send_tokens(self, sampled: Sequence[Sampled]) -> None:
        if not sampled:
            return
        tokens = []
        feeds: dict[str, list[FedToken]] = {}
        for one in sampled:
            held = self._open[one.request]
            tokens.append(
                Token(
                    request=one.request,
                    attempt=held.attempt,
                    position=one.position,
                    token=one.token,
                    finish=one.finish,
                    logprob=one.logprob,
                    top=one.top,
                )
            )
            if one.finish is None:
                self._known_here(one.request, one.token)
                fed = FedToken(
                    request=one.request, attempt=held.attempt, position=one.position, token=one.token
                )
                feeds.setdefault(held.route[0], []).append(fed)
        if not self._spec.is_first:
            for node, fed_tokens in feeds.items():
                self._outlet.feed(node, fed_tokens)
        self._outlet.tokens(tokens)
