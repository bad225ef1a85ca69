"""What the store is told of machines, orders, instances and plans, as they change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from coral.core.serve.coordinator.live_instance import LiveInstance
from coral.core.serve.coordinator.live_machine import LiveMachine
from coral.core.serve.store import fleet, plans
from coral.core.serve.store.database import Store
from coral.errors import StoreError
from coral.types.plan import Plan


class Memory:
    """Without a store nothing is remembered. What cannot be written is said by the store and lost; an order
    alone is not made then. `clock`: seconds since the epoch.

    `deployment`: by which clouds tell our machines from others'; empty: all they show are ours.
    """

    def __init__(
        self, store: Store | None = None, deployment: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.deployment = deployment
        self._store = store
        self._clock = clock
        self._numbers: dict[str, int] = {}

    # ------------------------------------------------------------ machines

    def ordering(self, one: LiveMachine, cloud: str) -> None:
        """To be called before the cloud is asked. Raises StoreError: then it must not be asked."""
        if self._store is not None:
            record = fleet.OrderRecord(id=one.order, cloud=cloud, made_s=self._clock(), offer=one.offer)
            fleet.put_order(self._store, record)

    def order_refused(self, order: str) -> None:
        if self._store is not None:
            fleet.drop_order(self._store, order)

    def machine(self, one: LiveMachine, cloud: str, *, joined: bool) -> None:
        """It is rented, or its agent has joined."""
        if self._store is not None:
            record = fleet.MachineRecord(
                order=one.order, cloud=cloud, since_s=self._clock(), machine=one.machine, joined=joined
            )
            fleet.put_machine(self._store, record)

    def machine_gone(self, machine: str) -> None:
        """It costs nothing any longer."""
        if self._store is not None:
            fleet.drop_machine(self._store, machine)

    # ------------------------------------------------------------ instances

    def number(self, model: str) -> int:
        """Of the model's next instance, never given twice."""
        number = self._numbers.get(model, 0) + 1
        if self._store is not None:
            with contextlib.suppress(StoreError):  # the count of this run goes on
                number = max(number, fleet.next_number(self._store, model))
        self._numbers[model] = number
        return number

    def seen(self, instance: str) -> None:
        """An instance runs under that name, of which nothing was known: its number is taken."""
        model, _, number = instance.rpartition("-")
        if number.isdecimal():
            self._numbers[model] = max(self._numbers.get(model, 0), int(number))

    def instance(self, one: LiveInstance) -> None:
        """Its state as it is now; forgotten once nothing of it is left."""
        if self._store is None:
            return
        if not one.holding:
            fleet.drop_instance(self._store, one.id)
            return
        record = fleet.InstanceRecord(
            id=one.id,
            since_s=self._clock(),
            state=one.state.value,
            template=one.template,
            domain=one.domain,
            claim=one.claim,
            layout=one.layout,
            fingerprint=one.fingerprint,
            processes=tuple(
                fleet.ProcessRecord(name=p.name, machine=p.machine, node=p.node, pid=p.pid)
                for p in one.processes.values()
                if not p.ended
            ),
        )
        fleet.put_instance(self._store, record)

    # ------------------------------------------------------------ plans

    def plan(self, plan: Plan, reason: str) -> None:
        """It is the running plan from now on."""
        if self._store is not None:
            plans.add_plan(self._store, plan, reason=reason, now_s=self._clock())
