"""The scheduler of one instance as a pure state machine: an event in, commands out.

::

    submit ─► WAITING ─room─► OPENING ─later stages opened─► RUNNING ─finish, abort─► RELEASING ─► gone
                 ▲                                              │                         │
                 └────────────── RELEASING ◄──────preempted─────┘                        lost

The driver carries commands out in order and feeds events back; the simulator does the same under a
virtual clock. Commands to one node must arrive in order, and a node must answer `Release` after the
last tokens of what it releases; nothing else is assumed.

A sequence reserves KV on every node of its route and is extended ahead of need. Where a node is full,
the youngest sequence on it is preempted on its whole route and later replayed from prompt and tokens
so far. The oldest one is never preempted unless it is alone, and alone it fits (else it was refused):
so there is always one that gets on, and no deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coral.core.operate.admission import WaitingQueue, kv_tokens, max_request_tokens, refusal
from coral.core.operate.command import Command, Drained, Extend, Lose, Open, Refuse, Release
from coral.core.operate.dispatch import Dispatcher
from coral.core.operate.ledger import Ledger
from coral.core.operate.sequence import LiveSequence, Next, SequenceState
from coral.types.request import GenerateRequest, Token
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
    ) -> None:
        self.ledger = Ledger(capacities)
        self.dispatcher = Dispatcher(stages)
        self.max_request_tokens = max_request_tokens(stages, capacities, max_model_len)
        self.kv_tokens = kv_tokens(stages, capacities)
        self.preemptions = 0
        self.failed = ""
        self._rule = rule
        self._ahead = max(1, rule.extend_tokens // 4)
        self._waiting = WaitingQueue(max_waiting)
        self._sequences: dict[str, LiveSequence] = {}
        self._growing: dict[str, LiveSequence] = {}
        self._arrivals = 0
        self._attempts = 0
        self._draining = False
        self._drained = False

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._sequences) - len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._sequences

    def in_flight(self) -> tuple[str, ...]:
        """Ids of all requests here, waiting or not."""
        return tuple(self._sequences)

    # ------------------------------------------------------------ events

    def submit(self, request: GenerateRequest) -> list[Command]:
        """A request arrives. Refused: 400 where it can never be served here, 503 where not now."""
        reason = refusal(request, self.max_request_tokens)
        if reason is not None:
            return [Refuse(request.id, 400, reason)]
        if request.id in self._sequences:
            return [Refuse(request.id, 503, f"request {request.id} is still in flight here")]
        if self.failed:
            return [Refuse(request.id, 503, f"the instance has failed: {self.failed}")]
        if self._draining:
            return [Refuse(request.id, 503, "the instance is draining")]
        if self._waiting.full:
            return [Refuse(request.id, 503, f"{len(self._waiting)} requests wait here already")]
        sequence = LiveSequence.of(request, self._arrivals)
        self._arrivals += 1
        self._sequences[request.id] = sequence
        self._waiting.push(sequence)
        return self._advance([])

    def abort(self, requests: Iterable[str]) -> list[Command]:
        """Nobody wants these any more; unknown ids are ignored."""
        out: list[Command] = []
        for request in requests:
            sequence = self._sequences.get(request)
            if sequence is not None:
                self._end(sequence, out)
        return self._advance(out)

    def expire(self, now_s: float) -> list[Command]:
        """Refuse what still waits past its deadline. `now_s`: seconds since the epoch."""
        late = [s for s in self._waiting if 0 < s.request.deadline_s < now_s]
        out: list[Command] = []
        for sequence in late:
            out.append(Refuse(sequence.id, 503, "its deadline passed while it waited for room"))
            self._end(sequence, out)
        return self._advance(out)

    def opened(self, node: str, request: str, attempt: int, error: str = "") -> list[Command]:
        """A node has opened an attempt, or refused to (`error`)."""
        sequence = self._current(request, attempt)
        if sequence is None or sequence.state is SequenceState.RELEASING:
            return []
        out: list[Command] = []
        if error:
            self._lose(sequence, f"node {node} cannot open it: {error}", out)
        elif node in sequence.unopened:
            sequence.unopened.discard(node)
            if not sequence.unopened:
                self._start(sequence, out)
        return self._advance(out)

    def tokens(self, tokens: Iterable[Token]) -> list[Command]:
        """The last stage has sampled; stale attempts and doubles are dropped."""
        out: list[Command] = []
        for token in tokens:
            sequence = self._current(token.request, token.attempt)
            if sequence is None or sequence.finish is not None or token.position < len(sequence.generated):
                continue
            if token.position > len(sequence.generated):
                gap = f"token {token.position} came after {len(sequence.generated)} tokens"
                self._lose(sequence, gap, out)
                continue
            sequence.generated.append(token.token)
            if token.finish is not None:
                sequence.finish = token.finish
                self._end(sequence, out)
            elif sequence.state is SequenceState.RUNNING:
                self._grow(sequence, out)
        return self._advance(out)

    def released(self, node: str, sequences: Iterable[tuple[str, int]]) -> list[Command]:
        """A node has given back these (request, attempt) pairs; no token of them follows."""
        out: list[Command] = []
        for request, attempt in sequences:
            sequence = self._current(request, attempt)
            if sequence is not None and sequence.state is SequenceState.RELEASING:
                sequence.unreleased.discard(node)
                if not sequence.unreleased:
                    self._leave(sequence, out)
        return self._advance(out)

    def sequence_failed(self, node: str, request: str, attempt: int, reason: str) -> list[Command]:
        """A node cannot go on with one sequence."""
        out: list[Command] = []
        sequence = self._current(request, attempt)
        if sequence is not None:
            self._lose(sequence, f"node {node}: {reason}", out)
        return self._advance(out)

    def node_failed(self, reason: str) -> list[Command]:
        """A node is gone, and with it the instance: everything in flight is lost here."""
        if self.failed:
            return []
        self.failed = reason
        out: list[Command] = [
            Lose(sequence.id, reason)
            for sequence in self._sequences.values()
            if sequence.state is not SequenceState.RELEASING or sequence.next is not Next.END
        ]
        for sequence in self._sequences.values():
            if sequence.route:
                self.ledger.free(sequence.id)
        self._sequences.clear()
        self._growing.clear()
        self._waiting = WaitingQueue(0)
        return out

    def drain(self) -> list[Command]:
        """Take nothing new; `Drained` follows when the last sequence has left."""
        self._draining = True
        return self._advance([])

    # ------------------------------------------------------------ moves

    def _current(self, request: str, attempt: int) -> LiveSequence | None:
        sequence = self._sequences.get(request)
        return sequence if sequence is not None and sequence.attempt == attempt else None

    def _advance(self, out: list[Command]) -> list[Command]:
        """Let those in flight grow, oldest first; then admit from the head of the queue."""
        for sequence in sorted(self._growing.values(), key=lambda s: s.arrival):
            if sequence.id in self._growing:
                self._grow(sequence, out)
        while not self._growing and (head := self._waiting.head()) is not None:
            if not self._admit(head, out):
                break
        if self._draining and not self._sequences and not self._drained and not self.failed:
            self._drained = True
            out.append(Drained())
        return out

    def _admit(self, sequence: LiveSequence, out: list[Command]) -> bool:
        reserve = self._rule.reserve(sequence.known, sequence.left)
        total = sequence.total
        ledger = self.ledger
        route = self.dispatcher.pick(
            lambda node: ledger.has_room(node, reserve) and ledger.can_ever_hold(node, total)
        )
        if route is None:
            return False
        self._waiting.pop()
        ledger.reserve(sequence.id, route, reserve)
        sequence.attempt = self._attempts
        self._attempts += 1
        sequence.route, sequence.reserved = route, reserve
        sequence.state = SequenceState.OPENING
        sequence.told = route[1:]
        sequence.unopened = set(route[1:])
        request = sequence.resumed()
        out.extend(Open(node, request, sequence.attempt, reserve, route) for node in route[1:])
        if not sequence.unopened:
            self._start(sequence, out)
        return True

    def _start(self, sequence: LiveSequence, out: list[Command]) -> None:
        first = sequence.route[0]
        sequence.told = sequence.route
        sequence.state = SequenceState.RUNNING
        out.append(Open(first, sequence.resumed(), sequence.attempt, sequence.reserved, sequence.route))

    def _grow(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Extend ahead of need; on a full node preempt the youngest, maybe this one itself."""
        if sequence.reserved >= sequence.total or sequence.reserved - sequence.known > self._ahead:
            self._growing.pop(sequence.id, None)
            return
        target = self._rule.extend(sequence.reserved, sequence.total)
        missing = self.ledger.lacking(sequence.id, target)
        if not missing:
            self.ledger.extend(sequence.id, target)
            sequence.reserved = target
            self._growing.pop(sequence.id, None)
            out.extend(
                Extend(node, sequence.id, sequence.attempt, target) for node in reversed(sequence.route)
            )
            return
        self._growing[sequence.id] = sequence
        for node, short in missing.items():
            while short > self._coming_free(node) and sequence.state is SequenceState.RUNNING:
                self._preempt(self._youngest(node), out)

    def _coming_free(self, node: str) -> int:
        """Blocks on a node whose sequences are being released."""
        return sum(
            self.ledger.held(node, request)
            for request in self.ledger.holders(node)
            if self._sequences[request].state is SequenceState.RELEASING
        )

    def _youngest(self, node: str) -> LiveSequence:
        live = (self._sequences[request] for request in self.ledger.holders(node))
        return max((s for s in live if s.state is not SequenceState.RELEASING), key=lambda s: s.arrival)

    def _preempt(self, sequence: LiveSequence, out: list[Command]) -> None:
        self.preemptions += 1
        self._release(sequence, Next.RESUME, out)

    def _end(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Finished or aborted: wherever it is, it will not come back."""
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
            del self._sequences[sequence.id]
        elif sequence.state is SequenceState.RELEASING:
            sequence.next = Next.END
        else:
            self._release(sequence, Next.END, out)

    def _lose(self, sequence: LiveSequence, reason: str, out: list[Command]) -> None:
        sequence.reason = reason
        if sequence.state is not SequenceState.RELEASING:
            self._release(sequence, Next.LOSE, out)
        elif sequence.next is Next.RESUME:
            sequence.next = Next.LOSE

    def _release(self, sequence: LiveSequence, then: Next, out: list[Command]) -> None:
        sequence.state = SequenceState.RELEASING
        sequence.next = then
        sequence.unreleased = set(sequence.told)
        self._growing.pop(sequence.id, None)
        pair = ((sequence.id, sequence.attempt),)
        out.extend(Release(node, pair) for node in sequence.told)
        if not sequence.told:
            self._leave(sequence, out)

    def _leave(self, sequence: LiveSequence, out: list[Command]) -> None:
        self.ledger.free(sequence.id)
        sequence.route, sequence.told, sequence.reserved = (), (), 0
        if sequence.next is Next.RESUME:
            sequence.state = SequenceState.WAITING
            self._waiting.push(sequence, preempted=True)
            return
        del self._sequences[sequence.id]
        if sequence.next is Next.LOSE:
            out.append(Lose(sequence.id, sequence.reason))
