"""A machine as the coordinator follows it."""

from __future__ import annotations

from coral.core.operate.lifecycle import MachineState
from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.place import Place
from coral.core.serve.net.wire import AgentHello
from coral.hookspecs.cloud import Cloud
from coral.types.hardware import Machine, Offer


class LiveMachine:
    """Its `id` is the order's until its cloud has given it one. Times are of the coordinator's clock."""

    def __init__(self, order: str, offer: Offer, cloud: Cloud, now: float) -> None:
        self.order = order
        self.offer = offer
        self.cloud = cloud
        self.state = MachineState.ORDERED
        self.since = now
        self.machine = Machine(
            id=order,
            machine_type=offer.machine_type,
            domain=offer.domain,
            price_usd_h=offer.price_usd_h,
            market=offer.market,
            preemption_per_h=offer.preemption_per_h,
        )
        self.peer: Peer | None = None
        self.hello: AgentHello | None = None
        """What its agent said when it joined, or came back."""
        self.heard = self.reached = now
        self.reason = ""
        self.release_at: float | None = None
        """When to give it back again; None where that is not due."""
        self.adopted = False
        """An earlier coordinator has rented it."""
        self.returning = False
        """Its agent had joined that one, and has not come back yet."""

    @classmethod
    def of_earlier(
        cls, order: str, machine: Machine, cloud: Cloud, now: float, *, joined: bool
    ) -> LiveMachine:
        """One that an earlier coordinator has rented: as if its cloud had just confirmed the order."""
        offer = Offer(
            machine_type=machine.machine_type,
            domain=machine.domain,
            price_usd_h=machine.price_usd_h,
            obtainable=0,
            market=machine.market,
            preemption_per_h=machine.preemption_per_h,
        )
        one = cls(order, offer, cloud, now)
        one.machine, one.state = machine, MachineState.BOOTING
        one.adopted, one.returning = True, joined
        return one

    @property
    def id(self) -> str:
        return self.machine.id

    @property
    def agent_pid(self) -> int:
        return self.hello.pid if self.hello is not None else 0

    @property
    def ended(self) -> bool:
        return self.state in (MachineState.RELEASED, MachineState.LOST)

    @property
    def place(self) -> Place:
        if self.peer is None or self.hello is None or not self.peer.user:
            return Place()
        return Place(network=True, host=self.hello.address, python=self.hello.python)

    @property
    def unreleased(self) -> bool:
        """It may still cost money."""
        return not self.ended or self.release_at is not None
