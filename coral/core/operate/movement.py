"""How sequences move through an instance: admitted, extended, preempted, released.

A sequence reserves KV on every node of its route and is extended ahead of need. Where a node is full,
the last sequence on it (of the least priority, of these the youngest) is preempted on its whole route
and later replayed from prompt and tokens so far. The first one is never preempted unless it is alone,
and alone it fits (else it was refused): so there is always one that gets on, and no deadlock. A prefill
leg whose token is sampled only waits for its KV to be taken: it is not preempted, it leaves within the
lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coral.core.operate.admission import WaitingQueue
from coral.core.operate.command import (
    Await,
    Begin,
    Command,
    Drained,
    Extend,
    HandedOver,
    Lose,
    Open,
    Release,
    Resume,
    SendKv,
)
from coral.core.operate.dispatch import Dispatcher
from coral.core.operate.ledger import Ledger
from coral.core.operate.sequence import LiveSequence, Next, SequenceState
from coral.types.reservation import ReservationRule
from coral.types.stage import KvCapacity

LEAVING = (SequenceState.RELEASING, SequenceState.HANDING)
"""States of a sequence whose blocks come free without anybody's doing."""


class Movement:
    """All sequences of an instance and what they hold. Every method appends the commands it takes."""

    def __init__(
        self,
        stages: Sequence[Sequence[tuple[str, float]]],
        capacities: Mapping[str, KvCapacity],
        rule: ReservationRule,
        max_waiting: int,
    ) -> None:
        self.ledger = Ledger(capacities)
        self.dispatcher = Dispatcher(stages)
        self.waiting = WaitingQueue(max_waiting)
        self.sequences: dict[str, LiveSequence] = {}
        self.preemptions = 0
        self._rule = rule
        self._ahead = max(1, rule.extend_tokens // 4)
        self._growing: dict[str, LiveSequence] = {}
        self._attempts = 0
        self._stuck = False
        """Nobody in the queue has room, and nothing has changed since."""
        self._draining = False
        self._drained = False

    def current(self, request: str, attempt: int) -> LiveSequence | None:
        sequence = self.sequences.get(request)
        return sequence if sequence is not None and sequence.attempt == attempt else None

    def enter(self, sequence: LiveSequence) -> None:
        self.sequences[sequence.id] = sequence
        self.waiting.push(sequence)
        self._stuck = False

    def drain(self) -> None:
        self._draining = True

    def advance(self, out: list[Command]) -> list[Command]:
        """Let those in flight grow, in order of rank; then admit from the queue."""
        for sequence in sorted(self._growing.values(), key=lambda s: s.rank):
            if sequence.id in self._growing:
                self.grow(sequence, out)
        while not self._growing and not self._stuck:
            self._stuck = not any(self._admit(one, out) for one in self.waiting.admissible(self._need))
        if self._draining and not self.sequences and not self._drained:
            self._drained = True
            out.append(Drained())
        return out

    # ------------------------------------------------------------ in

    def _need(self, sequence: LiveSequence) -> int:
        """Tokens to reserve for one that is to start."""
        return self._rule.reserve(sequence.known, sequence.left)

    def _admit(self, sequence: LiveSequence, out: list[Command]) -> bool:
        reserve = self._need(sequence)
        total = sequence.total
        ledger = self.ledger
        route = self.dispatcher.pick(
            lambda node: ledger.has_room(node, reserve) and ledger.can_ever_hold(node, total)
        )
        if route is None:
            return False
        self.waiting.admit(sequence, reserve)
        ledger.reserve(sequence.id, route, reserve)
        sequence.attempt = self._attempts
        self._attempts += 1
        sequence.route, sequence.reserved = route, reserve
        sequence.state = SequenceState.OPENING
        sequence.told = route if sequence.leg == "decode" else route[1:]
        sequence.unopened = set(sequence.told)
        for node in sequence.told:
            self._open(sequence, node, out)
        if not sequence.unopened:
            self.opened(sequence, out)
        return True

    def opened(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Every node that was told has opened it, or resumed it."""
        if sequence.state is SequenceState.RESUMING:
            sequence.state = SequenceState.RUNNING
            out.append(Resume(sequence.route[0], sequence.id, sequence.attempt, sequence.handed or ()))
        elif sequence.leg == "decode":
            sequence.state = SequenceState.AWAITING
            sequence.awaited = True
            sequence.lacking = set(sequence.route)
            sequence.still_since_s = None
            out.append(Await(sequence.id, sequence.attempt, sequence.route))
        else:
            self._start(sequence, out)

    def _start(self, sequence: LiveSequence, out: list[Command]) -> None:
        sequence.told = sequence.route
        sequence.state = SequenceState.RUNNING
        self._open(sequence, sequence.route[0], out)
        if sequence.leg == "prefill":
            if not sequence.begun:
                sequence.begun = True
                out.append(Begin(sequence.id))
            self.send_kv(sequence, out)

    def _open(self, sequence: LiveSequence, node: str, out: list[Command]) -> None:
        out.append(
            Open(
                node,
                sequence.resumed(),
                sequence.attempt,
                sequence.reserved,
                sequence.route,
                sequence.leg,
            )
        )

    def send_kv(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Tell the whole route where the KV goes, from its first token on."""
        if sequence.destination is not None:
            sequence.lacking = set(sequence.route)
            to = sequence.destination
            out.extend(SendKv(node, sequence.id, sequence.attempt, to) for node in sequence.route)

    # ------------------------------------------------------------ room

    def grow(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Extend ahead of need; on a full node preempt the last in rank, maybe this one itself."""
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
                self._preempt(self._last(node), out)

    def _coming_free(self, node: str) -> int:
        """Blocks on a node whose sequences are leaving."""
        return sum(
            self.ledger.held(node, request)
            for request in self.ledger.holders(node)
            if self.sequences[request].state in LEAVING
        )

    def _last(self, node: str) -> LiveSequence:
        live = (self.sequences[request] for request in self.ledger.holders(node))
        return max((s for s in live if s.state not in LEAVING), key=lambda s: s.rank)

    def _preempt(self, sequence: LiveSequence, out: list[Command]) -> None:
        self.preemptions += 1
        self.release(sequence, Next.RESUME, out)

    # ------------------------------------------------------------ out

    def end(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Finished or aborted: wherever it is, it will not come back."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
            self._stuck = False
            del self.sequences[sequence.id]
        elif sequence.state is SequenceState.RELEASING:
            sequence.next = Next.END
        else:
            self.release(sequence, Next.END, out)

    def lose(self, sequence: LiveSequence, reason: str, out: list[Command]) -> None:
        sequence.reason = reason
        if sequence.state is not SequenceState.RELEASING:
            self.release(sequence, Next.LOSE, out)
        elif sequence.next is Next.RESUME:
            sequence.next = Next.LOSE

    def release(self, sequence: LiveSequence, then: Next, out: list[Command]) -> None:
        sequence.state = SequenceState.RELEASING
        sequence.next = then
        sequence.unreleased = set(sequence.told)
        self._growing.pop(sequence.id, None)
        pair = ((sequence.id, sequence.attempt),)
        out.extend(Release(node, pair) for node in sequence.told)
        if not sequence.told:
            self.leave(sequence, out)

    def leave(self, sequence: LiveSequence, out: list[Command]) -> None:
        """Every node has released it."""
        self.ledger.free(sequence.id)
        self._stuck = False
        sequence.route, sequence.told, sequence.reserved = (), (), 0
        if sequence.next is Next.RESUME:
            self._replay(sequence)
            return
        del self.sequences[sequence.id]
        if sequence.next is Next.LOSE:
            out.append(Lose(sequence.id, sequence.reason))
        elif sequence.next is Next.HANDED:
            out.append(HandedOver(sequence.id))

    def _replay(self, sequence: LiveSequence) -> None:
        """It waits for room again. A decode leg that has asked for its KV is replayed here from its prompt:
        whoever had the KV may be gone, and what still comes of it is dropped."""
        if sequence.leg == "decode" and sequence.awaited:
            sequence.leg = "whole"
            sequence.learn_handed()
        sequence.state = SequenceState.WAITING
        self.waiting.push(sequence, preempted=True)

    def forget_all(self) -> None:
        """The nodes are gone, and with them all that was held."""
        for sequence in self.sequences.values():
            if sequence.route:
                self.ledger.free(sequence.id)
        self.sequences.clear()
        self._growing.clear()
        self.waiting = WaitingQueue(0)
        self._drained = True
