"""What is held: machines and instances as the decisions see them."""

from __future__ import annotations

from msgspec import Struct

from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.core.operate.slots import Claim
from coral.types.hardware import Domain, Machine, Market
from coral.types.placement import Template

MACHINE_COMING = frozenset({MachineState.ORDERED, MachineState.BOOTING})
MACHINE_HELD = MACHINE_COMING | {MachineState.JOINED}
MACHINE_PAID = MACHINE_HELD | {MachineState.DRAINING}
INSTANCE_STARTING = frozenset({InstanceState.PLACED, InstanceState.LOADING})
INSTANCE_WANTED = INSTANCE_STARTING | {InstanceState.READY}


class OfferKey(Struct, frozen=True, order=True):
    """What is rented alike: machine type, domain, market."""

    machine_type: str
    domain: Domain
    market: Market

    @classmethod
    def of(cls, machine: Machine) -> OfferKey:
        return cls(machine.machine_type.name, machine.domain, machine.market)

    def __str__(self) -> str:
        spot = " (spot)" if self.market == "spot" else ""
        return f"{self.machine_type}{spot} in {self.domain}"


class HeldMachine(Struct, frozen=True, kw_only=True):
    """A machine of ours. While it is only ordered, `machine.id` is the order's.

    `leaving`: its cloud has announced its end. It counts as held no longer, and nothing is placed on it.
    `hurry`: so little of its notice is left that what still serves there has to go now.
    """

    machine: Machine
    state: MachineState
    leaving: bool = False
    hurry: bool = False


class HeldInstance(Struct, frozen=True, kw_only=True):
    """`holding`: False once all its processes have ended and its devices are free."""

    id: str
    template: Template
    domain: Domain
    state: InstanceState
    claim: Claim
    load: int = 0
    """Requests on it."""
    holding: bool = True

    @property
    def ready(self) -> bool:
        return self.state is InstanceState.READY
