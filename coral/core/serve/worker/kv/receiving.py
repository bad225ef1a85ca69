"""The decode side of a node: takes KV in for sequences that are open and waits until it is complete.

Credit goes back at once: what waits for other layers is less than what the sequence has reserved, and a
sender that were held up here could be the one that another node waits for. KV of a sequence that is not
(or no longer) open is dropped, so nothing is written that is somebody else's by now.
"""

from __future__ import annotations

from coral.core.serve.net.channel import Channel, ReceivedKv
from coral.core.serve.net.messages.handover import KvArrived
from coral.core.serve.net.messages.worker import OpenSequence, SequenceFailed
from coral.core.serve.worker.kv.intake import Intake
from coral.errors import CoralError
from coral.hookspecs.engine import StageRunner
from coral.types.stage import StageSpec


class KvReceiving:
    def __init__(self, spec: StageSpec, runner: StageRunner, channel: Channel) -> None:
        self._spec = spec
        self._runner = runner
        self._channel = channel
        self._intakes: dict[str, tuple[int, Intake]] = {}
        """By request: the attempt, and what has come of it."""

    def open(self, message: OpenSequence) -> None:
        """A decode leg is open here: its KV may come."""
        layers = (self._spec.first_layer, self._spec.end_layer)
        intake = Intake(message.request.id, layers, message.request.known)
        self._intakes[message.request.id] = (message.attempt, intake)

    def close(self, request: str) -> None:
        self._intakes.pop(request, None)

    def arrive(self, received: ReceivedKv) -> KvArrived | SequenceFailed | None:
        """Take it in; what there is to say of it, if anything."""
        header = received.header
        self._channel.done(header)
        attempt, intake = self._intakes.get(header.request, (-1, None))
        if intake is None or attempt != header.attempt:
            return None
        node, request = self._spec.node, header.request
        try:
            intake.add(header, received.frames)
            piece = intake.take()
            if piece is None:
                return None
            self._runner.import_kv(request, [piece])
        except CoralError as error:
            self.close(request)
            reason = f"its KV cannot be taken over: {error}"
            return SequenceFailed(node=node, request=request, attempt=attempt, reason=reason)
        if intake.complete:
            self.close(request)
        return KvArrived(node=node, request=request, attempt=attempt, tokens=intake.taken)
