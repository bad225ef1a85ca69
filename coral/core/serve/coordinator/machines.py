"""The machines of this deployment: rented, joined by their agents, watched, given back."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from coral.core.operate.lifecycle import MachineCommand, MachineEvent, MachineState, machine_step
from coral.core.operate.reconcile import HeldMachine, OfferKey
from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_machine import LiveMachine
from coral.core.serve.coordinator.market import Market
from coral.core.serve.coordinator.memory import Memory
from coral.core.serve.coordinator.place import Place
from coral.core.serve.coordinator.waiting import WaitingAgents
from coral.core.serve.net.wire import AgentHello, Heartbeat, Message, Shutdown
from coral.errors import CloudError, CoralError, NoCapacity, StoreError
from coral.hookspecs.cloud import Cloud, RentOrder
from coral.hookspecs.engine import Launch
from coral.types.hardware import Machine, Offer

SILENCE_S = 10.0
UNREACHABLE_S = 3.0
"""An agent whose connection is gone for so long is dead, whenever it was heard last."""
RELEASE_AGAIN_S = 30.0
"""A machine that its cloud did not take back is given back again after this time, until it is gone."""
KEEP_ENDED = 50
REVOKED = "its key has been revoked"


class MachineOwner(Protocol):
    """Whoever drives the machines: told of what concerns more than one machine."""

    def machine_changed(self) -> None: ...

    def fail_instances(self, machine: str, reason: str) -> None: ...

    def machine_lost(self, machine: str, reason: str) -> None: ...

    def replan(self, reason: str) -> None: ...


class Machines:
    """Called from the event loop; what takes time runs as tasks of its own."""

    def __init__(
        self,
        clouds: Sequence[Cloud],
        agent: Launch,
        control: Control,
        owner: MachineOwner,
        journal: Journal,
        *,
        boot_timeout_s: float,
        return_timeout_s: float = 30.0,
        memory: Memory | None = None,
        names: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names`: of the clouds, as the store knows them. An agent that had joined an earlier coordinator
        comes back within `return_timeout_s`, or not at all."""
        self._clouds = clouds
        self._names = {id(cloud): name for cloud, name in zip(clouds, names, strict=False)}
        self._agent = agent
        self._control = control
        self._owner = owner
        self._journal = journal
        self._boot_timeout_s = boot_timeout_s
        self._return_timeout_s = return_timeout_s
        self._memory = memory or Memory()
        self._now = now
        self._all: dict[str, LiveMachine] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.market = Market(clouds, self._held_of, now=now)
        self.waiting = WaitingAgents(control, journal, silence_s=SILENCE_S, now=now)

    # ------------------------------------------------------------ what there is

    def held(self) -> list[HeldMachine]:
        return [HeldMachine(machine=one.machine, state=one.state) for one in self._all.values()]

    def living(self) -> list[LiveMachine]:
        return [one for one in self._all.values() if not one.ended]

    def all(self) -> Mapping[str, LiveMachine]:
        return self._all

    def reachable(self, machine: str) -> bool:
        """Whether its agent is connected now."""
        return self.send(machine, Heartbeat(at_s=time.time()))

    def place(self, machine: str) -> Place:
        one = self._all.get(machine)
        return one.place if one is not None else Place()

    def by_peer(self, peer: Peer) -> str | None:
        """The machine whose agent that is."""
        return next((one.id for one in self.living() if one.peer == peer), None)

    def may_return(self, machine: str) -> bool:
        """Its agent was here before this coordinator, and is awaited."""
        one = self._all.get(machine)
        return one is not None and one.returning and one.state is MachineState.BOOTING

    def send(self, machine: str, message: Message) -> bool:
        """To the machine's agent; False where it cannot be reached."""
        one = self._all.get(machine)
        return one is not None and one.peer is not None and self._control.send(one.peer, message)

    # ------------------------------------------------------------ what to do

    def adopt(self, one: LiveMachine) -> None:
        """It is ours: an earlier coordinator has rented it."""
        one.since = one.heard = one.reached = self._now()
        self._all[one.id] = one
        self._memory.machine(one, self._name(one.cloud), joined=one.returning)

    def rent(self, key: OfferKey) -> None:
        if self.market.is_cooling(key):
            return
        cloud, offer = self.market.find(key)
        one = LiveMachine(f"order-{uuid.uuid4().hex[:12]}", offer, cloud, self._now())
        try:
            self._memory.ordering(one, self._name(cloud))
        except StoreError as error:
            self.market.refused(key, error)
            text = f"{offer.machine_type.name} is not rented: {error.message}"
            self._journal.say("machine", f"{text}; {error.mend}", fault=True)
            return
        self._all[one.id] = one
        self._journal.say("machine", f"renting {offer.machine_type.name} in {offer.domain}")
        self._spawn(self._rent(one, key))

    def order(self, id: str, offer: Offer) -> RentOrder:
        tags = {"coral": self._memory.deployment or "serve"}
        return RentOrder(id=id, offer=offer, agent=self._agent, tags=tags, joined=self.waiting.names())

    def end(self, machine: str) -> None:
        """Nobody wants it any longer."""
        self._step(self._all[machine], MachineEvent.UNWANTED)

    async def give_back_all(self) -> None:
        """Everything, also what only the clouds know of; used when the system ends.

        Raises CloudError, after all clouds were asked, where some machine may still be there.
        """
        for one in self.living():
            self._step(one, MachineEvent.UNWANTED, release=False)
        while self._tasks:  # orders under way: they must be known before they can be given back
            await asyncio.wait(self._tasks)
        failures: list[str] = []
        for cloud in self._clouds:
            try:
                await cloud.release([one.id for one in await cloud.machines() if self.ours(one)])
            except Exception as error:  # of one cloud: the others' machines are given back all the same
                held = [one.id for one in self._all.values() if one.cloud is cloud and one.unreleased]
                failures.append(f"{', '.join(held) or 'its machines'}: {_words(error)}")
            else:
                for one in self.living():
                    if one.cloud is cloud:
                        self._step(one, MachineEvent.GIVEN_BACK)
                        self._memory.machine_gone(one.id)
        if failures:
            raise CloudError(
                "machines may still be rented, since a cloud did not take them back: " + "; ".join(failures),
                mend="end them with the cloud's own tools, or start again: what is left over is given back",
            )

    # ------------------------------------------------------------ what happens

    def hello(self, peer: Peer, hello: AgentHello) -> LiveMachine | None:
        """An agent has dialled. None where no machine of ours has that id; one of another machine waits."""
        one = self._all.get(hello.machine)
        if one is None or (one.ended and peer.user):
            if peer.user:
                self.waiting.add(peer, hello)
            return None
        one.peer, one.hello = peer, hello
        one.heard = one.reached = self._now()
        before = one.state
        self._step(one, MachineEvent.AGENT_JOINED)
        if before is not one.state:
            self._journal.say("machine", f"{one.id} has {'come back' if one.returning else 'joined'}")
            one.returning = False
            self._memory.machine(one, self._name(one.cloud), joined=True)
        return one

    def heard(self, peer: Peer) -> None:
        for one in self._all.values():
            if one.peer == peer:
                one.heard = self._now()
        self.waiting.heard(peer)

    def beat(self) -> None:
        """Tell all agents that we are there, and note who can be told."""
        for one in self.living():
            if self.reachable(one.id):
                one.reached = self._now()
        self.waiting.beat()

    def shut_out(self, machine: str) -> None:
        """Its key has been revoked: whatever it says is not heard any more."""
        self._journal.say("machine", f"{machine} is shut out: its key has been revoked", fault=True)
        waiting = self.waiting.take(machine)
        if waiting is not None:
            self._control.send(waiting[0], Shutdown(reason=REVOKED))
        one = self._all.get(machine)
        if one is not None and one.peer is not None and one.peer.user and not one.ended:
            self._control.send(one.peer, Shutdown(reason=REVOKED))
            one.reason = REVOKED
            self._step(one, MachineEvent.VANISHED)

    def tick(self) -> None:
        """Notice silent agents, those that are gone, and machines that do not come up."""
        self.waiting.tick()
        now = self._now()
        for one in self.living():
            if one.state is MachineState.JOINED and now - one.heard > SILENCE_S:
                one.reason = f"its agent has been silent for {SILENCE_S:g} s"
                self._step(one, MachineEvent.VANISHED)
            elif one.state is MachineState.JOINED and now - one.reached > UNREACHABLE_S:
                one.reason = "its agent has closed its connection"
                self._step(one, MachineEvent.VANISHED)
            elif one.state is MachineState.BOOTING and now - one.since > (limit := self._patience_s(one)):
                one.reason = (
                    f"its agent has not {'come back' if one.returning else 'joined'} within {limit:g} s"
                )
                if not one.returning:
                    self.market.refused(OfferKey.of(one.machine), NoCapacity(one.reason))
                self._step(one, MachineEvent.VANISHED)
        for one in self._all.values():
            if one.release_at is not None and now >= one.release_at:
                one.release_at = None
                self._spawn(self._release(one))

    # ------------------------------------------------------------ inside

    def _held_of(self) -> Counter[OfferKey]:
        return Counter(OfferKey.of(one.machine) for one in self.living())

    def ours(self, machine: Machine) -> bool:
        """Of what a cloud shows."""
        ours = self._memory.deployment
        return not ours or machine.deployment in ("", ours)

    def _patience_s(self, one: LiveMachine) -> float:
        return self._return_timeout_s if one.returning else self._boot_timeout_s

    def _name(self, cloud: Cloud) -> str:
        return self._names.get(id(cloud), "")

    def _step(self, one: LiveMachine, event: MachineEvent, *, release: bool = True) -> None:
        before = one.state
        one.state, commands = machine_step(one.state, event)
        if one.state is before:
            return
        one.since = self._now()
        if one.state is MachineState.LOST:
            self._journal.say("machine", f"{one.id} is lost: {one.reason}", fault=True)
            self._owner.machine_lost(one.id, one.reason)
        for command in commands:
            if command is MachineCommand.RELEASE and release and before is not MachineState.ORDERED:
                self._spawn(self._release(one))
            elif command is MachineCommand.FAIL_INSTANCES:
                self._owner.fail_instances(one.id, f"machine {one.id} is lost: {one.reason}")
            elif command is MachineCommand.REPLAN:
                self._owner.replan(f"machine {one.id} is lost")
        self._forget_ended()
        self._owner.machine_changed()

    async def _rent(self, one: LiveMachine, key: OfferKey) -> None:
        try:
            machine = await one.cloud.rent(self.order(one.order, one.offer))
        except Exception as error:  # a cloud is anyone's: whatever it raises, nothing was rented
            self._memory.order_refused(one.order)
            pause_s = self.market.refused(key, error)
            one.reason = f"{_words(error)}; {key} is left alone for {pause_s:g} s"
            unwanted = one.state is MachineState.DRAINING
            self._step(one, MachineEvent.GIVEN_BACK if unwanted else MachineEvent.REFUSED)
            return
        if machine.id in self._all and not self._all[machine.id].ended:
            one.reason = f"its cloud calls it {machine.id}, as another machine is called"
            self._journal.say("machine", f"{key} is not rented: {one.reason}", fault=True)
            self.market.refused(key, NoCapacity(one.reason))
            self._step(one, MachineEvent.REFUSED)
            return
        self.market.rented(key)
        del self._all[one.order]
        one.machine = machine
        self._all[machine.id] = one
        self._memory.machine(one, self._name(one.cloud), joined=False)
        self._step(one, MachineEvent.RENTED)
        if one.state is MachineState.DRAINING:  # nobody wants it any longer
            await self._release(one)
        elif (waiting := self.waiting.take(one.id)) is not None:
            self.hello(*waiting)

    async def _release(self, one: LiveMachine) -> None:
        try:
            await one.cloud.release([one.id])
        except Exception as error:  # whatever it is, the machine costs money until it is gone
            one.release_at = self._now() + RELEASE_AGAIN_S
            text = f"{one.id} cannot be given back: {_words(error)}; again in {RELEASE_AGAIN_S:g} s"
            self._journal.say("machine", text, fault=True)
            return
        self._memory.machine_gone(one.id)
        if one.state is MachineState.DRAINING:
            self._step(one, MachineEvent.GIVEN_BACK)
            self._journal.say("machine", f"{one.id} is given back")
            if one.peer is not None and one.peer.user and one.hello is not None:
                self.waiting.add(one.peer, replace(one.hello, running=()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.say("machine", f"{type(error).__name__}: {error}", fault=True)

    def _forget_ended(self) -> None:
        living = {one.id for one in self.living()}
        ended = [one for one in self._all.values() if one.id not in living and one.release_at is None]
        for one in ended[: max(0, len(ended) - KEEP_ENDED)]:
            del self._all[one.id]


def _words(error: Exception) -> str:
    return error.message if isinstance(error, CoralError) else f"{type(error).__name__}: {error}"
