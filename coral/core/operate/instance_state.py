"""The scheduler of one instance as a pure state machine: an event in, commands out.

::

    submit ─► WAITING ─room─► OPENING ─later stages opened─► RUNNING ─finish, abort─► RELEASING ─► gone
                 ▲               │ all opened                 │ ▲  │ token                │  ▲    lost
                 │               ▼ (decode leg)               │ │  ▼ (prefill leg)        │  │
                 │           AWAITING ─KV, token─► RESUMING ──┼─┘  HANDING ──KV sent──────┼──┘
                 └────────────── RELEASING ◄─────preempted────┘                           │
                                                                              handed over ┘

The driver carries commands out in order and feeds events back; the simulator does the same under a
virtual clock. Commands to one node must arrive in order, and a node must answer `Release` after the
last tokens of what it releases; nothing else is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coral.core.operate.admission import kv_tokens, max_request_tokens, refusal
from coral.core.operate.command import Command, HandedOver, Lose, Refuse
from coral.core.operate.handing_over import HandingOver
from coral.core.operate.movement import Movement
from coral.core.operate.sequence import LiveSequence, Next, SequenceState
from coral.types.handover import KvDestination
from coral.types.request import GenerateRequest, Leg, Token
from coral.types.reservation import ReservationRule
from coral.types.stage import KvCapacity


class InstanceState:
    def __init__(
        self,
        stages: Sequence[Sequence[tuple[str, float]]],
        capacities: Mapping[str, KvCapacity],
        rule: ReservationRule,
        *,
        max_model_len: int,
        max_waiting: int,
        kv_lease_s: float = 60.0,
    ) -> None:
        self.max_request_tokens = max_request_tokens(stages, capacities, max_model_len)
        self.kv_tokens = kv_tokens(stages, capacities)
        self.failed = ""
        self._movement = Movement(stages, capacities, rule, max_waiting)
        self._handing = HandingOver(self._movement, kv_lease_s)
        self.ledger = self._movement.ledger
        self.dispatcher = self._movement.dispatcher
        self._arrivals = 0
        self._draining = False

    @property
    def preemptions(self) -> int:
        return self._movement.preemptions

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._movement.sequences) - len(self._movement.waiting)

    @property
    def waiting(self) -> int:
        return len(self._movement.waiting)

    @property
    def idle(self) -> bool:
        return not self._movement.sequences

    def in_flight(self) -> tuple[str, ...]:
        """Ids of all requests here, waiting or not."""
        return tuple(self._movement.sequences)

    # ------------------------------------------------------------ requests

    def submit(self, request: GenerateRequest, leg: Leg = "whole") -> list[Command]:
        """A request arrives. Refused: 400 where it can never be served here, 503 where not now."""
        reason = refusal(request, self.max_request_tokens)
        if reason is not None:
            return [Refuse(request.id, 400, reason)]
        if request.id in self._movement.sequences:
            return [Refuse(request.id, 503, f"request {request.id} is still in flight here")]
        if self.failed:
            return [Refuse(request.id, 503, f"the instance has failed: {self.failed}")]
        if self._draining:
            return [Refuse(request.id, 503, "the instance is draining")]
        if self._movement.waiting.full:
            return [Refuse(request.id, 503, f"{self.waiting} requests wait here already")]
        self._movement.enter(LiveSequence.of(request, self._arrivals, leg))
        self._arrivals += 1
        return self._movement.advance([])

    def abort(self, requests: Iterable[str]) -> list[Command]:
        """Nobody wants these any more; unknown ids are ignored."""
        out: list[Command] = []
        for request in requests:
            sequence = self._movement.sequences.get(request)
            if sequence is not None:
                self._movement.end(sequence, out)
        return self._movement.advance(out)

    def expire(self, now_s: float) -> list[Command]:
        """Refuse what still waits past its deadline; lose what is past its lease. `now_s`: seconds since
        the epoch."""
        late = [s for s in self._movement.waiting if 0 < s.request.deadline_s < now_s]
        out: list[Command] = []
        for sequence in late:
            out.append(Refuse(sequence.id, 503, "its deadline passed while it waited for room"))
            self._movement.end(sequence, out)
        self._handing.expire(now_s, out)
        return self._movement.advance(out)

    def drain(self) -> list[Command]:
        """Take nothing new; `Drained` follows when the last sequence has left."""
        self._draining = True
        self._movement.drain()
        return [] if self.failed else self._movement.advance([])

    # ------------------------------------------------------------ nodes

    def opened(self, node: str, request: str, attempt: int, error: str = "") -> list[Command]:
        """A node has opened an attempt, or resumed it, or refused to (`error`)."""
        sequence = self._movement.current(request, attempt)
        if sequence is None or sequence.state is SequenceState.RELEASING:
            return []
        out: list[Command] = []
        if error:
            self._movement.lose(sequence, f"node {node} cannot open it: {error}", out)
        elif node in sequence.unopened:
            sequence.unopened.discard(node)
            if not sequence.unopened:
                self._movement.opened(sequence, out)
        return self._movement.advance(out)

    def tokens(self, tokens: Iterable[Token]) -> list[Command]:
        """The last stage has sampled; stale attempts and doubles are dropped."""
        out: list[Command] = []
        for token in tokens:
            sequence = self._movement.current(token.request, token.attempt)
            if sequence is not None and sequence.finish is None:
                self._sampled(sequence, token, out)
        return self._movement.advance(out)

    def _sampled(self, sequence: LiveSequence, token: Token, out: list[Command]) -> None:
        releasing = sequence.state is SequenceState.RELEASING
        hands_over = sequence.leg == "prefill" and token.finish == "length"
        if token.position < len(sequence.generated):
            return
        if token.position > len(sequence.generated):
            gap = f"token {token.position} came after {len(sequence.generated)} tokens"
            self._movement.lose(sequence, gap, out)
        elif hands_over and releasing:
            pass  # its KV is gone: the replay samples the same token again
        elif hands_over:
            sequence.generated.append(token.token)
            self._handing.sampled(sequence, out)
        else:
            sequence.generated.append(token.token)
            if token.finish is not None:
                sequence.finish = token.finish
                self._movement.end(sequence, out)
            elif sequence.state is SequenceState.RUNNING:
                self._movement.grow(sequence, out)

    def released(self, node: str, sequences: Iterable[tuple[str, int]]) -> list[Command]:
        """A node has given back these (request, attempt) pairs; no token of them follows."""
        out: list[Command] = []
        for request, attempt in sequences:
            sequence = self._movement.current(request, attempt)
            if sequence is not None and sequence.state is SequenceState.RELEASING:
                sequence.unreleased.discard(node)
                if not sequence.unreleased:
                    self._movement.leave(sequence, out)
        return self._movement.advance(out)

    def sequence_failed(self, node: str, request: str, attempt: int, reason: str) -> list[Command]:
        """A node cannot go on with one sequence."""
        out: list[Command] = []
        sequence = self._movement.current(request, attempt)
        if sequence is not None:
            self._movement.lose(sequence, f"node {node}: {reason}", out)
        return self._movement.advance(out)

    def node_failed(self, reason: str) -> list[Command]:
        """A node is gone, and with it the instance: everything in flight is lost here."""
        if self.failed:
            return []
        self.failed = reason
        out: list[Command] = []
        for sequence in self._movement.sequences.values():
            releasing = sequence.state is SequenceState.RELEASING
            if releasing and sequence.next is Next.HANDED:
                out.append(HandedOver(sequence.id))
            elif not releasing or sequence.next is not Next.END:
                out.append(Lose(sequence.id, reason))
        self._movement.forget_all()
        return out

    # ------------------------------------------------------------ KV that goes over

    def hand_over(self, request: str, to: KvDestination) -> list[Command]:
        """Prefill leg: its KV goes there; a later destination replaces an earlier. Lost where it has left."""
        out: list[Command] = []
        self._handing.hand_over(request, to, out)
        return self._movement.advance(out)

    def kv_sent(self, node: str, request: str, attempt: int, destination: tuple[str, int]) -> list[Command]:
        """Prefill leg: all KV of this node is with its receivers at `destination` (instance, attempt)."""
        out: list[Command] = []
        self._handing.sent(node, request, attempt, destination, out)
        return self._movement.advance(out)

    def kv_arrived(self, node: str, request: str, attempt: int, tokens: int) -> list[Command]:
        """Decode leg: this node has the KV of the first `tokens` tokens."""
        out: list[Command] = []
        self._handing.arrived(node, request, attempt, tokens, out)
        return self._movement.advance(out)

    def go_on(self, request: str, tokens: tuple[int, ...]) -> list[Command]:
        """Decode leg: what the prefill leg sampled. Unknown ids are ignored."""
        out: list[Command] = []
        self._handing.go_on(request, tokens, out)
        return self._movement.advance(out)
