"""The devices that what is missing may take: now, soon (on the way, or being left), and in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coral.core.operate.actions import StartInstance
from coral.core.operate.claiming import claim
from coral.core.operate.holdings import INSTANCE_WANTED, MACHINE_HELD, HeldInstance, HeldMachine
from coral.core.operate.lifecycle import MachineState
from coral.core.operate.renting import Hire, Renting
from coral.core.operate.slots import Claim, Slots, Wanted, free_slots, without
from coral.types.hardware import Machine, Node
from coral.types.plan import PlannedInstances


def wanted_of(planned: PlannedInstances) -> Wanted:
    return Wanted(placement=planned.template.placement, domain=planned.domain, market=planned.market)


class Ground:
    """`unwanted`: instances that the plan does not keep. What is `surplus` gives nothing."""

    def __init__(
        self,
        machines: Sequence[HeldMachine],
        instances: Sequence[HeldInstance],
        unwanted: Iterable[HeldInstance],
        surplus: set[str],
        rents: Renting,
    ) -> None:
        ours = [one for one in machines if one.state in MACHINE_HELD and one.machine.id not in surplus]
        self._ours = [one.machine for one in ours]
        self._instances = instances
        self._taken: list[Claim] = []
        held = [node for one in instances if one.holding for node in one.claim.nodes]
        self.now = free_slots((one.machine for one in ours if one.state is MachineState.JOINED), held)
        gone = {one.id for one in unwanted}
        self.later = free_slots([*self._ours, *_machines(rents.all)], self._nodes(gone))
        """Free once all that is to go has gone and all that is to come has come."""
        self._ordered = rents.now
        self.unknown = frozenset(one.offer.domain for one in rents.all if one.machine is None)
        """Domains where something is to come of which nobody has said how large it is."""

    def starts(
        self, missing: Sequence[PlannedInstances]
    ) -> tuple[list[StartInstance], list[PlannedInstances]]:
        """(what has room now, what does not)."""
        claims = claim([wanted_of(one) for one in missing], self.now, self.later)
        starts: list[StartInstance] = []
        short: list[PlannedInstances] = []
        for one, got in zip(missing, claims, strict=True):
            if got is None:
                short.append(one)
            else:
                starts.append(StartInstance(template=one.template, domain=one.domain, claim=got))
                self._taken.append(got)
        self.later = self._beside(self.later)
        return starts, short

    def soon(self, going: set[str], ordered: Sequence[Hire]) -> list[Slots]:
        """Free once those that are going have gone and what is ordered has come, before anything starts."""
        return free_slots([*self._ours, *_machines(ordered)], self._nodes(going))

    def left(self, going: set[str]) -> list[Slots]:
        """The same, beside what starts now."""
        return self._beside(self.soon(going, self._ordered))

    def _nodes(self, gone: set[str]) -> list[Node]:
        """Held by those that stay beside these."""
        staying = [one for one in self._instances if one.state in INSTANCE_WANTED and one.id not in gone]
        return [node for one in staying for node in one.claim.nodes]

    def _beside(self, slots: Sequence[Slots]) -> list[Slots]:
        """What is left beside what starts now."""
        left = list(slots)
        for taken in self._taken:
            left = [without(slot, taken) for slot in left]
        return left


def _machines(hires: Iterable[Hire]) -> list[Machine]:
    return [one.machine for one in hires if one.machine is not None]
