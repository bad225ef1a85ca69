"""Rent, release and find again: a machine is a detached agent process on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence

from coral.errors import CloudError, NoCapacity
from coral.hookspecs.cloud import Notice, RentOrder
from coral.types.hardware import Domain, Gpu, Machine, MachineType, Offer
from coral_cloud_local.ledger import Ledger, Rented
from coral_cloud_local.options import LocalMachineType, LocalOptions
from coral_cloud_local.process import ProcessId

DOMAIN = Domain("local", "host")
POLL_S = 0.05
GATE = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "coral-agent")
"""An agent waits here until it is written down, and ends where whoever starts it dies before that: so none
runs that no ledger names."""


def build(options: LocalOptions) -> LocalCloud:
    return LocalCloud(options)


def whole_machine() -> LocalMachineType:
    """All cores and half of the memory, as one device."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return LocalMachineType(name="host", memory=memory // 2, threads=len(os.sched_getaffinity(0)))


class LocalCloud:
    """A `coral.hookspecs.cloud.Cloud`."""

    def __init__(self, options: LocalOptions) -> None:
        self._types = {one.name: one for one in options.machines or (whole_machine(),)}
        self._ledger = Ledger(options.folder)
        self._release_timeout_s = options.release_timeout
        self._owner = ProcessId.of(os.getpid())
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def gpus(self) -> Sequence[Gpu]:
        unique = {one.device: one for one in self._types.values()}
        return [
            Gpu(
                name=name,
                kind="cpu",
                memory_bytes=one.memory,
                memory_bytes_per_s=0.0,
                flops={},
                threads=one.threads,
            )
            for name, one in unique.items()
        ]

    async def offers(self) -> Sequence[Offer]:
        self._reap()
        held = [one.machine.machine_type.name for one in self._ledger.look().values()]
        return [
            Offer(
                machine_type=machine_type(one),
                domain=DOMAIN,
                price_usd_h=one.price,
                obtainable=max(0, one.count - held.count(one.name)),
            )
            for one in self._types.values()
        ]

    async def machines(self) -> Sequence[Machine]:
        """Those rented by this process, and those whose deployment has died."""
        self._reap()
        return [one.machine for one in self._ledger.look().values() if self._ours(one)]

    async def rent(self, order: RentOrder) -> Machine:
        self._reap()
        name = order.offer.machine_type.name
        if order.offer.domain != DOMAIN or name not in self._types:
            raise CloudError(
                f"local cloud: there is no machine type {name} in {order.offer.domain}",
                mend=f"machine types here: {', '.join(self._types)}",
            )
        started: Rented | None = None
        try:
            with self._ledger.open() as entries:
                for one in entries.values():
                    if one.order == order.id and self._ours(one):
                        return one.machine
                held = sum(one.machine.machine_type.name == name for one in entries.values())
                if held >= self._types[name].count:
                    raise NoCapacity(f"local cloud: all {held} machines of type {name} are in use")
                started = self._start(order, self._types[name])
                entries[started.machine.id] = started
        except CloudError:
            if started is not None:  # it could not be written down, so nobody would find it again
                started.agent.signal(signal.SIGKILL)
            raise
        self._begin(started.machine.id)
        return started.machine

    async def release(self, machines: Sequence[str]) -> None:
        """Ends the agents, which end what they run; an agent that takes too long is killed.

        Raises CloudError where one does not even end then: the kernel holds it.
        """
        entries = self._ledger.look()
        leaving = {id: entries[id].agent for id in machines if id in entries and self._ours(entries[id])}
        for agent in leaving.values():
            agent.signal(signal.SIGTERM)
        if not await self._ended(leaving):
            for agent in leaving.values():
                agent.signal(signal.SIGKILL)
            if not await self._ended(leaving):
                left = ", ".join(f"{id} (pid {one.pid})" for id, one in leaving.items() if one.alive())
                raise CloudError(f"local cloud: agents that do not end, though killed: {left}")
        self._reap()

    async def notices(self) -> Sequence[Notice]:
        return []

    def _start(self, order: RentOrder, kind: LocalMachineType) -> Rented:
        id = f"{kind.name}-{uuid.uuid4().hex[:8]}"
        with self._ledger.new_log(id) as log:
            try:
                process = subprocess.Popen(
                    [*GATE, *order.agent.argv, "--machine", id],
                    env={**os.environ, **order.agent.env},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise CloudError(
                    f"local cloud: cannot start {order.agent.argv[0]}: {error.strerror}"
                ) from error
        self._children[id] = process
        machine = Machine(
            id=id,
            machine_type=machine_type(kind),
            domain=DOMAIN,
            price_usd_h=kind.price,
            address="127.0.0.1",
            deployment=order.tags.get("coral", ""),
        )
        agent = ProcessId.of(process.pid)
        return Rented(machine=machine, order=order.id, agent=agent, owner=self._owner, tags=order.tags)

    def _begin(self, id: str) -> None:
        """It is written down: let it run."""
        gate = self._children[id].stdin
        assert gate is not None  # made with a pipe
        try:
            gate.write(b"\n")
            gate.close()
        except BrokenPipeError:
            return  # it has been ended already

    async def _ended(self, agents: Mapping[str, ProcessId]) -> bool:
        """Wait until all have ended, at most for the release timeout."""
        deadline = asyncio.get_running_loop().time() + self._release_timeout_s
        while any(agent.alive() for agent in agents.values()):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _ours(self, one: Rented) -> bool:
        return one.owner == self._owner or not one.owner.alive()

    def _reap(self) -> None:
        for id in [id for id, process in self._children.items() if process.poll() is not None]:
            gate = self._children.pop(id).stdin
            if gate is not None and not gate.closed:
                with contextlib.suppress(BrokenPipeError):
                    gate.close()


def machine_type(one: LocalMachineType) -> MachineType:
    return MachineType(
        name=one.name,
        gpu=one.device,
        gpus=one.devices,
        host_memory_bytes=one.memory * one.devices,
        nic_bytes_per_s=one.nic_bandwidth,
        nic_latency_s=one.nic_latency,
    )
