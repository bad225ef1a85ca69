"""What an earlier coordinator has left running: found again, and taken over, given back or forgotten.

Machines that store and cloud both know are ours again. One that only its cloud knows is given back, unless
an order that was under way finds it under its id. One that only the store knows is gone. Of the instances
on ours those that were whole go on; what else runs there is ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from coral.core.operate.lifecycle import InstanceState
from coral.core.serve.coordinator.instances import Instances
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_instance import LiveInstance, LiveProcess
from coral.core.serve.coordinator.live_machine import LiveMachine
from coral.core.serve.coordinator.machines import Machines
from coral.core.serve.store import fleet
from coral.core.serve.store.database import Store
from coral.errors import CloudError, CoralError, StoreError
from coral.hookspecs.cloud import Cloud
from coral.types.hardware import Machine

CLOUD_S = 20.0
"""Longest time a cloud may take to say what is rented."""
YOUNG_S = 600.0
"""An order older than this is not asked for again: what came of it is given back."""


class Adopted(Struct, frozen=True, kw_only=True):
    """Ids of what was taken over. `at_s`: seconds since the epoch."""

    machines: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    at_s: float = 0.0


class Adoption:
    """One cloud after another, then the instances. `clouds` by their names in this deployment."""

    def __init__(
        self,
        store: Store,
        clouds: Mapping[str, Cloud],
        machines: Machines,
        instances: Instances,
        journal: Journal,
    ) -> None:
        self._store = store
        self._clouds = clouds
        self._machines = machines
        self._instances = instances
        self._journal = journal

    async def adopt(self, fingerprints: Mapping[str, str]) -> Adopted:
        """`fingerprints`: by model of the config. Raises CloudError where a cloud cannot say what is rented,
        and the store knows of nothing there."""
        try:
            known, orders = fleet.machines(self._store), fleet.orders(self._store)
            records = fleet.instances(self._store)
        except StoreError as error:
            self._journal.say(
                "machine", f"{error.message}; what runs is found through the clouds", fault=True
            )
            known, orders, records = [], [], []
        adopted: list[str] = []
        for name, cloud in self._clouds.items():
            adopted += await self._cloud(
                name,
                cloud,
                {one.machine.id: one for one in known if one.cloud == name},
                [one for one in orders if one.cloud == name],
            )
        for one in known:
            if one.cloud not in self._clouds:
                text = (
                    f"{one.machine.id} of cloud {one.cloud}, which the config no longer names, may be rented"
                )
                self._journal.say("machine", f"{text}: name that cloud again to give it back", fault=True)
        living = [one for one in records if self._instance(one, set(adopted), fingerprints)]
        return Adopted(machines=tuple(adopted), instances=tuple(one.id for one in living), at_s=time.time())

    # ------------------------------------------------------------ machines

    async def _cloud(
        self,
        name: str,
        cloud: Cloud,
        known: Mapping[str, fleet.MachineRecord],
        orders: Sequence[fleet.OrderRecord],
    ) -> list[str]:
        """Ids of the machines that were taken over."""
        try:
            async with asyncio.timeout(CLOUD_S):
                shown = {one.id: one for one in await cloud.machines() if self._machines.ours(one)}
        except (CloudError, TimeoutError) as error:
            if not known and not orders:
                raise
            self._journal.say(
                "machine", f"cloud {name} does not say what is rented: {_words(error)}", fault=True
            )
            shown = {id: one.machine for id, one in known.items()}  # whoever is not there will not come back
        ours = {id: known[id] for id in shown if id in known}
        for order in orders:
            machine = await self._ordered(cloud, order)
            if machine is not None and machine.id not in ours:
                shown[machine.id] = machine
                ours[machine.id] = fleet.MachineRecord(
                    order=order.id, cloud=name, since_s=order.made_s, machine=machine
                )
        for id, record in ours.items():
            self._machines.adopt(
                LiveMachine.of_earlier(record.order, shown[id], cloud, 0.0, joined=record.joined)
            )
        if ours:
            self._journal.say("machine", f"taking over from an earlier run: {', '.join(ours)}")
        for id in known.keys() - shown.keys():
            self._journal.say("machine", f"{id} of an earlier run is gone, and is forgotten")
            fleet.drop_machine(self._store, id)
        if strange := [id for id in shown if id not in ours]:
            await self._give_back(cloud, strange)
        return list(ours)

    async def _ordered(self, cloud: Cloud, order: fleet.OrderRecord) -> Machine | None:
        """The machine of an order whose answer an earlier coordinator did not live to hear."""
        machine: Machine | None = None
        if time.time() - order.made_s < YOUNG_S:
            try:
                machine = await cloud.rent(self._machines.order(order.id, order.offer))
            except Exception as error:  # a cloud is anyone's: whatever it raises, nothing is rented
                self._journal.say(
                    "machine", f"order {order.id} of an earlier run: {_words(error)}", fault=True
                )
        if machine is None:
            fleet.drop_order(self._store, order.id)
        return machine

    async def _give_back(self, cloud: Cloud, machines: Sequence[str]) -> None:
        self._journal.say("machine", f"giving back what an earlier run left: {', '.join(machines)}")
        try:
            await cloud.release(machines)
        except CloudError as error:  # they show up again at the next start, or when this run ends
            self._journal.say("machine", f"cannot be given back: {error.message}", fault=True)

    # ------------------------------------------------------------ instances

    def _instance(
        self, record: fleet.InstanceRecord, machines: set[str], fingerprints: Mapping[str, str]
    ) -> bool:
        """Whether it goes on; if not, what is left of it is ended."""
        one = LiveInstance(record.layout, record.template, record.domain, record.claim)
        one.fingerprint = record.fingerprint
        for process in record.processes:
            ended = process.machine not in machines
            one.processes[process.name] = LiveProcess(
                name=process.name, machine=process.machine, node=process.node, pid=process.pid, ended=ended
            )
        lost = [machine for machine in record.claim.machines if machine not in machines]
        wanted = fingerprints.get(one.model)
        if lost:
            one.reason = f"machine {lost[0]} is gone"
        elif record.state not in (InstanceState.READY, InstanceState.LOADING) or not one.complete:
            one.reason = (
                f"it was {record.state}, and not whole" if not one.complete else f"it was {record.state}"
            )
        elif wanted is None:
            one.reason = f"the config has no model {one.model} any more"
        if one.reason:
            one.state = InstanceState.GONE
            self._journal.say("instance", f"{one.id} of an earlier run is ended: {one.reason}")
        else:
            one.state = InstanceState.LOADING
            if wanted != record.fingerprint:
                one.outdated = "its model is configured otherwise now"
                self._journal.say("instance", f"{one.id} of an earlier run makes way: {one.outdated}")
        self._instances.adopt(one)
        return not one.reason


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CLOUD_S:g} s"
    return error.message if isinstance(error, CoralError) else f"{type(error).__name__}: {error}"
