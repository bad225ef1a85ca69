"""Two legs of one request at two instances: what the scheduler of either decides on KV that goes over.

The prefill leg runs to its one token and then stays, holding its blocks, until every node of its route
has handed the KV to the destination named last. The decode leg is opened on its whole route and then
waits for the KV on every node, and for what the prefill leg sampled.

No block is held for a peer that is gone: a prefill leg for which nobody asks, and a decode leg to which
nothing comes, is lost after the time of a lease; a receiver that takes nothing is given up by its sender,
whose node then says that the sequence has failed.
"""

from __future__ import annotations

from coral.core.operate.command import Command, Lose, Resume
from coral.core.operate.movement import Movement
from coral.core.operate.sequence import LiveSequence, Next, SequenceState
from coral.types.handover import KvDestination

GONE = "its KV is no longer here"


class HandingOver:
    def __init__(self, movement: Movement, lease_s: float) -> None:
        self._movement = movement
        self._lease_s = lease_s

    # ------------------------------------------------------------ prefill leg

    def hand_over(self, request: str, to: KvDestination, out: list[Command]) -> None:
        """Where its KV goes is known, or has changed. Lost where the KV is no longer here."""
        sequence = self._movement.sequences.get(request)
        if sequence is None or sequence.leg != "prefill":
            out.append(Lose(request, GONE))
            return
        if sequence.state is SequenceState.RELEASING and sequence.next is Next.HANDED:
            sequence.next, sequence.reason = Next.LOSE, GONE
            return
        sequence.destination = to
        if sequence.state in (SequenceState.RUNNING, SequenceState.HANDING):
            self._movement.send_kv(sequence, out)

    def sampled(self, sequence: LiveSequence, out: list[Command]) -> None:
        """It has its token: all that is left is to hand its KV over."""
        sequence.state = SequenceState.HANDING
        sequence.still_since_s = None
        self._leave_if_handed(sequence, out)

    def sent(
        self, node: str, request: str, attempt: int, destination: tuple[str, int], out: list[Command]
    ) -> None:
        """All KV of a node is with its receivers."""
        sequence = self._movement.current(request, attempt)
        if sequence is None or sequence.destination is None or sequence.destination.key != destination:
            return
        sequence.lacking.discard(node)
        if sequence.state is SequenceState.HANDING:
            self._leave_if_handed(sequence, out)

    def _leave_if_handed(self, sequence: LiveSequence, out: list[Command]) -> None:
        if sequence.destination is not None and not sequence.lacking:
            self._movement.release(sequence, Next.HANDED, out)

    # ------------------------------------------------------------ decode leg

    def arrived(self, node: str, request: str, attempt: int, tokens: int, out: list[Command]) -> None:
        """A node has the KV of the first tokens."""
        sequence = self._movement.current(request, attempt)
        if sequence is None or sequence.state is not SequenceState.AWAITING:
            return
        sequence.still_since_s = None
        if tokens >= sequence.known:
            sequence.lacking.discard(node)
            self._resume_if_complete(sequence, out)

    def go_on(self, request: str, tokens: tuple[int, ...], out: list[Command]) -> None:
        """What the prefill leg sampled."""
        sequence = self._movement.sequences.get(request)
        if sequence is None or sequence.handed is not None:
            return
        if sequence.leg == "decode":
            sequence.handed = tokens
            self._resume_if_complete(sequence, out)
        elif sequence.state is SequenceState.WAITING:  # preempted, and about to be replayed here
            sequence.handed = tokens
            sequence.learn_handed()

    def _resume_if_complete(self, sequence: LiveSequence, out: list[Command]) -> None:
        complete = sequence.handed is not None and not sequence.lacking
        if sequence.state is not SequenceState.AWAITING or not complete:
            return
        sequence.learn_handed()
        sequence.state = SequenceState.RESUMING
        later = sequence.route[1:]
        sequence.unopened = set(later)
        out.extend(Resume(node, sequence.id, sequence.attempt, sequence.handed or ()) for node in later)
        if not later:
            self._movement.opened(sequence, out)

    # ------------------------------------------------------------ both

    def expire(self, now_s: float, out: list[Command]) -> None:
        """Lose what has held blocks for a whole lease and waited for its peer."""
        for sequence in list(self._movement.sequences.values()):
            unasked = sequence.state is SequenceState.HANDING and sequence.destination is None
            if not unasked and sequence.state is not SequenceState.AWAITING:
                continue
            if sequence.still_since_s is None:
                sequence.still_since_s = now_s
            elif now_s - sequence.still_since_s > self._lease_s:
                self._movement.lose(sequence, self._why(sequence), out)

    def _why(self, sequence: LiveSequence) -> str:
        within = f"within {self._lease_s:g} s"
        if sequence.state is SequenceState.HANDING:
            return f"no instance has taken its KV over {within}"
        if sequence.lacking:
            return f"{', '.join(sorted(sequence.lacking))}: its KV has not come {within}"
        return f"its KV has come, but not what was sampled, {within}"
