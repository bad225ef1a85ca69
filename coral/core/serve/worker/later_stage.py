"""Stages after the first: make batches of whatever rows have arrived, from whichever nodes."""

from __future__ import annotations

from dataclasses import dataclass

from coral.core.operate.arrivals import ArrivalBatching, Arrived
from coral.core.serve.net.channel import Channel, Received
from coral.core.serve.net.messages.data import Rows
from coral.core.serve.net.messages.handover import ResumeSequence
from coral.core.serve.net.messages.worker import ExtendSequence, OpenSequence
from coral.core.serve.worker.outlet import Outlet
from coral.core.serve.worker.stage import StageAtWork
from coral.errors import ProtocolError
from coral.hookspecs.engine import StageRunner
from coral.types.stage import Chunk, HiddenRows, StageSpec


@dataclass(slots=True, eq=False)
class _Carrier:
    """A received message, and how many of its parts are still needed."""

    header: Rows
    parts: int


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    carrier: _Carrier
    rows: HiddenRows


class LaterStage(StageAtWork):
    def __init__(self, spec: StageSpec, runner: StageRunner, outlet: Outlet, channel: Channel) -> None:
        super().__init__(spec, runner, outlet, channel)
        self._arrivals: ArrivalBatching[_Part] = ArrivalBatching(
            step_tokens=spec.max_step_tokens, step_requests=spec.max_step_requests
        )
        self._running: list[Arrived[_Part]] = []

    @property
    def ready(self) -> bool:
        return self._arrivals.ready

    def arrive(self, received: Received) -> None:
        header, rows = received.header, received.rows
        if not isinstance(header, Rows) or rows is None:
            raise ProtocolError(f"stage {self._spec.stage} was sent {type(header).__name__}")
        carrier = _Carrier(header, len(header.parts))
        data = memoryview(rows.data).cast("B")
        row_bytes = data.nbytes // rows.shape[0]
        at = 0
        for part in header.parts:
            piece = HiddenRows(
                dtype=rows.dtype,
                shape=(part.n, rows.shape[1]),
                data=data[at * row_bytes : (at + part.n) * row_bytes],
            )
            at += part.n
            arrived = Arrived(part.request, part.attempt, part.start, part.n, _Part(carrier, piece))
            if not self._arrivals.arrive(arrived):
                self._let_go(carrier)

    def _opened(self, message: OpenSequence) -> None:
        self._arrivals.open(message.request.id, message.attempt, message.reserve)

    def _resumed(self, message: ResumeSequence) -> None:
        pass

    def _extended(self, message: ExtendSequence) -> None:
        self._arrivals.extend(message.request, message.reserve)

    def _closed(self, request: str) -> None:
        for dropped in self._arrivals.close(request):
            self._let_go(dropped.payload.carrier)

    def _batch(self) -> list[Chunk]:
        self._running = self._arrivals.next()
        return self._ordered(
            [Chunk(request=a.request, start=a.start, n=a.n, rows=a.payload.rows) for a in self._running]
        )

    def _ran(self, seconds: float) -> None:
        for arrived in self._running:
            self._let_go(arrived.payload.carrier)
        self._running = []

    def _known_here(self, request: str, token: int) -> None:
        pass

    def _let_go(self, carrier: _Carrier) -> None:
        carrier.parts -= 1
        if carrier.parts == 0:
            self._outlet.used(carrier.header)
