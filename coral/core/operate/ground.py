"""The devices that what is missing may take: now, soon (on the way, or being left), and in the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coral.core.operate.actions import StartInstance
from coral.core.operate.claiming import claim
from coral.core.operate.holdings import INSTANCE_WANTED, MACHINE_HELD, HeldInstance, HeldMachine, OfferKey
from coral.core.operate.lifecycle import MachineState
from coral.core.operate.renting import Renting, Supply
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
        supply: Mapping[OfferKey, Supply],
    ) -> None:
        ours = [one for one in machines if one.state in MACHINE_HELD and one.machine.id not in surplus]
        joined = [one.machine for one in ours if one.state is MachineState.JOINED]
        fresh = _machines_of(rents.all, supply)
        self._instances = instances
        self._soon = [*(one.machine for one in ours), *fresh[: len(rents.now)]]
        self._taken: list[Claim] = []
        self._now = free_slots(joined, (node for one in instances if one.holding for node in one.claim.nodes))
        gone = {one.id for one in unwanted}
        self.later = free_slots([*(one.machine for one in ours), *filter(None, fresh)], self._nodes(gone))
        """Free once all that is to go has gone and all that is to come has come."""
        self.unknown = frozenset(key.domain for key in rents.now if key not in supply)
        """Domains where something is to come of which nobody has said how large it is."""

    def starts(
        self, missing: Sequence[PlannedInstances]
    ) -> tuple[list[StartInstance], list[PlannedInstances]]:
        """(what has room now, what does not)."""
        claims = claim([wanted_of(one) for one in missing], self._now, self.later)
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

    def soon(self, going: set[str]) -> list[Slots]:
        """Free once those that are going have gone and what is ordered has come."""
        machines = [machine for machine in self._soon if machine is not None]
        return self._beside(free_slots(machines, self._nodes(going)))

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


def _machines_of(keys: Iterable[OfferKey], supply: Mapping[OfferKey, Supply]) -> list[Machine | None]:
    """As if they were there; None where nobody has said what such a machine is."""
    return [
        Machine(
            id=f"new {number}",
            machine_type=supply[key].machine_type,
            domain=key.domain,
            price_usd_h=0.0,
            market=key.market,
        )
        if key in supply
        else None
        for number, key in enumerate(keys)
    ]
