"""The prefill side of a node: pushes KV of its layers as it is computed, between steps, as far as there is
credit.

What is under way is leased: its blocks stay until the receiver has credited it, also where the sequence has
been released meanwhile. A receiver that credits nothing for the time of a lease is given up: its link is
cut, its leases end, and the sequences that were on their way to it have failed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coral.core.serve.net.channel import Channel
from coral.core.serve.net.messages.base import Message
from coral.core.serve.net.messages.handover import Kv, KvPart, KvSent, SendKv
from coral.core.serve.net.messages.worker import SequenceFailed
from coral.errors import CoralError, EngineError
from coral.hookspecs.engine import Lease, StageRunner
from coral.types.handover import KvNode
from coral.types.stage import Buffer, KvPiece, StageSpec

MESSAGE_BYTES = 8 << 20
"""About how much KV goes in one message."""
FIRST_TOKENS = 64
"""Tokens in a message before it is known how many bytes one has."""
IDLE_S = 60.0
"""A link over which nothing has gone for so long is cut."""


@dataclass(slots=True, eq=False)
class _Stream:
    """What one receiving node gets of a sequence: layers `[a, b)`, `given` tokens so far."""

    node: KvNode
    layers: tuple[int, int]
    given: int = 0
    last: int = 0
    """The number of its last message on the link."""


@dataclass(slots=True, eq=False)
class _Transfer:
    order: SendKv
    known: int
    streams: list[_Stream]


@dataclass(slots=True, eq=False)
class _Link:
    address: str
    lease_s: float
    moved_s: float
    """When something was last credited, or first sent or wanted to be sent after that."""
    overdue: bool = False
    """Found past its lease once: whatever came meanwhile is looked at before it is given up."""
    blocked: bool = False
    """Something is to be sent, and there is no credit (or no connection) for it."""
    under_way: deque[tuple[int, str, Lease]] = field(default_factory=deque)
    """Number of the message, request, lease."""


class KvSending:
    def __init__(
        self, spec: StageSpec, runner: StageRunner, channel: Channel, say: Callable[[Message], None]
    ) -> None:
        self._spec = spec
        self._runner = runner
        self._channel = channel
        self._say = say
        self._transfers: dict[str, _Transfer] = {}
        self._links: dict[str, _Link] = {}
        self._leased: Counter[str] = Counter()
        self._token_bytes = 0
        """The most bytes that a token was seen to have in one layer."""

    @property
    def busy(self) -> bool:
        """Something is to be sent or credited, or a link to be cut one day."""
        return bool(self._transfers or self._links)

    def start(self, order: SendKv, known: int, now: float) -> None:
        """Send the KV of the first `known` tokens there from now on, and no longer where it went before."""
        own = (self._spec.first_layer, self._spec.end_layer)
        streams = []
        for node in order.to.nodes:
            layers = max(own[0], node.first_layer), min(own[1], node.end_layer)
            if layers[0] < layers[1]:
                streams.append(_Stream(node, layers))
                self._link(node, order.lease_s, now)
        self._transfers[order.request] = _Transfer(order, known, streams)

    def _link(self, node: KvNode, lease_s: float, now: float) -> None:
        link = self._links.get(node.node)
        if link is not None and link.address != node.address:
            self._give_up(node.node, link, "has started anew")
            link = None
        if link is None:
            link = self._links[node.node] = _Link(node.address, lease_s, now)
            self._channel.link({node.node: node.address})
        link.lease_s = lease_s
        if not link.under_way:
            link.moved_s = now

    def stop(self, request: str) -> None:
        """Send no more of it."""
        self._transfers.pop(request, None)

    def leased(self, request: str) -> bool:
        """Some of its KV is still under way."""
        return self._leased[request] > 0

    def push(self, computed: Callable[[str], int], now: float) -> bool:
        """Send a message on every stream that has something to send and credit; True where there is more
        of both. `computed`: tokens of a request whose KV is here."""
        more, blocked = False, set()
        for transfer in list(self._transfers.values()):
            ready = min(computed(transfer.order.request), transfer.known)
            for stream in transfer.streams:
                if stream.given >= ready:
                    continue
                if not self._channel.may_send_to(stream.node.node):
                    blocked.add(stream.node.node)
                elif not self._send(transfer, stream, ready, now):
                    break
                else:
                    more |= stream.given < ready and self._channel.may_send_to(stream.node.node)
        for node, link in self._links.items():
            if node in blocked and not link.blocked and not link.under_way:
                link.moved_s = now
            link.blocked = node in blocked
        return more

    def settle(self, now: float) -> None:
        """End the leases of what was credited, give up who takes nothing, say what is complete."""
        for node, link in list(self._links.items()):
            credited = self._channel.kv_credited(node)
            while link.under_way and link.under_way[0][0] <= credited:
                self._end_lease(link)
                link.moved_s = now
            if fault := self._channel.link_fault(node):
                self._give_up(node, link, f"cannot be reached: {fault}")
                continue
            waits = link.blocked or bool(link.under_way)
            before, link.overdue = link.overdue, waits and now - link.moved_s > link.lease_s
            if link.overdue and before:
                self._give_up(node, link, f"has taken no KV for {link.lease_s:g} s")
            elif not waits and now - link.moved_s > IDLE_S:
                self._cut_if_idle(node)
        for transfer in list(self._transfers.values()):
            if all(self._arrived(transfer, stream) for stream in transfer.streams):
                order = transfer.order
                del self._transfers[order.request]
                self._say(
                    KvSent(
                        node=self._spec.node,
                        request=order.request,
                        attempt=order.attempt,
                        destination=order.to.key,
                    )
                )

    def close(self) -> None:
        """Nothing is sent any more, whoever waits for it."""
        for node, link in list(self._links.items()):
            self._cut(node, link)

    def _send(self, transfer: _Transfer, stream: _Stream, ready: int, now: float) -> bool:
        order, node = transfer.order, stream.node.node
        layers = stream.layers[1] - stream.layers[0]
        tokens = MESSAGE_BYTES // (self._token_bytes * layers) if self._token_bytes else FIRST_TOKENS
        start, end = stream.given, min(ready, stream.given + max(1, tokens))
        try:
            lease = self._runner.export_kv(order.request, stream.layers, (start, end))
        except CoralError as error:
            self._fail(transfer, f"its KV cannot be read: {error}")
            return False
        try:
            parts, frames = _payload(lease.piece)
        except EngineError as error:
            lease.cancel()
            self._fail(transfer, str(error))
            return False
        header = Kv(
            instance=order.to.instance,
            generation=order.to.generation,
            request=order.request,
            attempt=order.to.attempt,
            start=start,
            end=end,
            known=transfer.known,
            parts=parts,
        )
        stream.last = self._channel.send_kv(node, header, frames)
        stream.given = end
        link = self._links[node]
        if not link.under_way:
            link.moved_s = now
        link.under_way.append((stream.last, order.request, lease))
        self._leased[order.request] += 1
        bytes_ = sum(memoryview(frame).nbytes for frame in frames)
        self._token_bytes = max(self._token_bytes, bytes_ // (layers * (end - start)))
        return True

    def _arrived(self, transfer: _Transfer, stream: _Stream) -> bool:
        given = stream.given >= transfer.known
        return given and self._channel.kv_credited(stream.node.node) >= stream.last

    def _fail(self, transfer: _Transfer, reason: str) -> None:
        order = transfer.order
        self._transfers.pop(order.request, None)
        self._say(
            SequenceFailed(node=self._spec.node, request=order.request, attempt=order.attempt, reason=reason)
        )

    def _give_up(self, node: str, link: _Link, why: str) -> None:
        self._cut(node, link)
        for transfer in list(self._transfers.values()):
            if any(stream.node.node == node for stream in transfer.streams):
                self._fail(transfer, f"{node} {why}")

    def _cut_if_idle(self, node: str) -> None:
        streams = (stream for transfer in self._transfers.values() for stream in transfer.streams)
        if not any(stream.node.node == node for stream in streams):
            self._cut(node, self._links[node])

    def _cut(self, node: str, link: _Link) -> None:
        self._channel.unlink(node)
        del self._links[node]
        while link.under_way:
            self._end_lease(link)

    def _end_lease(self, link: _Link) -> None:
        _, request, lease = link.under_way.popleft()
        lease.done()
        self._leased[request] -= 1
        if not self._leased[request]:
            del self._leased[request]


def _payload(piece: KvPiece) -> tuple[tuple[KvPart, ...], list[Buffer]]:
    """Header parts and frames of a piece. Raises EngineError for what the wire has no place for."""
    parts, frames = [], []
    for section in piece.sections:
        if section.scales is not None:
            raise EngineError(f"KV of layer {section.layer} has scales, which no channel carries")
        parts.append(
            KvPart(
                layer=section.layer,
                kind=section.kind,
                dtype=section.dtype,
                shape=section.shape,
                token_start=section.token_start,
                head_start=section.head_start,
            )
        )
        frames += [section.k, section.v]
    return tuple(parts), frames
