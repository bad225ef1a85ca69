"""The controller: brings machines and instances to what the plan wants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from coral.core.operate.lifecycle import InstanceState
from coral.core.operate.reconcile import (
    DrainInstance,
    EndMachine,
    Rent,
    StartInstance,
    reconcile,
)
from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.demand.watch import DemandWatch, Forecasts
from coral.core.serve.coordinator.epochs import EpochOptions, Epochs, PlanEvents, PlanSource
from coral.core.serve.coordinator.instances import Instances, Launches
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_instance import LiveInstance
from coral.core.serve.coordinator.machines import Machines
from coral.core.serve.coordinator.memory import Memory
from coral.core.serve.coordinator.notices import Notices
from coral.core.serve.coordinator.requests import RequestTable
from coral.core.serve.coordinator.setbacks import Setbacks
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import Message
from coral.errors import CoralError, EngineError
from coral.hookspecs.cloud import Cloud
from coral.hookspecs.engine import Launch
from coral.types.model import ModelSpec
from coral.types.placement import Template
from coral.types.plan import Plan

PAUSE_S = 5.0
START_ATTEMPTS = 3
"""Failed starts of an instance after which `coral serve` gives up, while nothing has been up yet."""


class ControllerEvents(PlanEvents, Protocol):
    """Plugins that listen; see `coral.hookspecs.events`."""

    def instance_changed(self, instance: str, model: str, before: str, after: str) -> None: ...

    def machine_lost(self, machine: str, reason: str) -> None: ...


class ControllerOptions(EpochOptions, frozen=True, kw_only=True):
    start_timeout_s: float
    drain_timeout_s: float
    return_timeout_s: float = 30.0
    """How long what an earlier coordinator left may take to come back."""


class Controller:
    """Owner of machines and instances. Everything happens in the event loop."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        clouds: Sequence[Cloud],
        launches: Launches,
        agent: Launch,
        control: Control,
        planner: PlanSource,
        requests: RequestTable,
        events: ControllerEvents,
        journal: Journal,
        options: ControllerOptions,
        *,
        tokens_address: str,
        memory: Memory | None = None,
        cloud_names: Sequence[str] = (),
        demand: DemandWatch | None = None,
        forecasts: Forecasts | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        memory = memory or Memory()
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once everything the first plan wants is ready; failed where it cannot be."""
        self._control = control
        self._requests = requests
        self._events = events
        self._journal = journal
        self._now = now
        self._demand = demand
        self._kicked: asyncio.Handle | None = None
        self._stopped = False
        self._ticked = now()
        self.setbacks = Setbacks(now)
        self._notes: tuple[str, ...] = ()
        self.machines = Machines(
            clouds,
            agent,
            control,
            self,
            journal,
            boot_timeout_s=options.start_timeout_s,
            return_timeout_s=options.return_timeout_s,
            drain_s=options.drain_timeout_s,
            memory=memory,
            names=cloud_names,
            now=now,
        )
        self.instances = Instances(
            launches,
            self,
            journal,
            tokens_address=tokens_address,
            start_timeout_s=options.start_timeout_s,
            drain_timeout_s=options.drain_timeout_s,
            return_timeout_s=options.return_timeout_s,
            memory=memory,
            now=now,
        )
        self.epochs = Epochs(
            self.machines,
            self.instances,
            planner,
            events,
            journal,
            memory,
            options,
            held=lambda: self.instances.held(requests.loads()),
            carry_out=self.kick,
            fail=self._fail,
            demand=demand,
            forecasts=forecasts,
            now=now,
        )
        self.notices = Notices(clouds, self.machines, journal, self.replan)
        self.built_for(models)
        if demand is not None:
            demand.on_departure = lambda model, reason: self.replan(reason)

    @property
    def plan(self) -> Plan | None:
        return self.epochs.plan

    def built_for(self, models: Sequence[ModelSpec]) -> None:
        """The models as they are configured, which the template library is made for."""
        self.epochs.models = models
        if self._demand is not None:
            self._demand.built_for(models)

    async def run(self) -> None:
        """Plan and carry out until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.notices.run(), name="notices")
            group.create_task(self.epochs.run(), name="epochs")

    def tick(self) -> None:
        """Called every second or so: notice silence and lapsed times, and look again.

        After a pause of this very process others seem silent whose messages still wait to be read.
        """
        paused_s, self._ticked = self._now() - self._ticked, self._now()
        self.machines.beat()
        if paused_s < PAUSE_S:
            self.machines.tick()
            self.instances.tick()
        self._control.beat(self.instances.peers())
        if self._demand is not None:
            self._demand.tick()
        self.kick()

    def stop(self) -> None:
        """Carry nothing out any longer."""
        self._stopped = True
        if self._kicked is not None:
            self._kicked.cancel()

    # ------------------------------------------------------------ carrying out

    def kick(self) -> None:
        """Compare with the plan at the loop's next turn."""
        if self._kicked is None and not self._stopped:
            self._kicked = asyncio.get_running_loop().call_soon(self._carry_out)

    def _carry_out(self) -> None:
        self._kicked = None
        epochs = self.epochs
        if epochs.plan is None or epochs.settled is None or self._stopped:
            return
        held = self.instances.held(self._requests.loads())
        outdated = tuple(one.id for one in self.instances.all().values() if one.outdated)
        plan = replace(epochs.settled, leaves=(*epochs.settled.leaves, *outdated))
        schedule = reconcile(plan, self.machines.held(), held, epochs.bounds())
        for note in schedule.notes:
            if note not in self._notes:
                self._journal.say("plan", note)
        self._notes = schedule.notes
        for action in schedule.actions:
            match action:
                case Rent(offer=offer):
                    self.machines.rent(offer)
                case StartInstance(template=template, domain=domain, claim=claim):
                    if not self.setbacks.wait(template):
                        self._start(StartInstance(template=template, domain=domain, claim=claim))
                case DrainInstance(instance=instance):
                    self.instances.unwanted(instance)
                case EndMachine(machine=machine):
                    self.machines.end(machine)
        wanted = sum(planned.count for planned in plan.instances)
        ready = [one for one in self.instances.all().values() if one.state is InstanceState.READY]
        if not self.up.done() and 0 < wanted <= len(ready):
            self.up.set_result(None)

    def _start(self, start: StartInstance) -> None:
        if not all(self.machines.reachable(machine) for machine in start.claim.machines):
            return  # it is lost soon, or back: that nobody can be told there is no failure of the instance
        try:
            self.instances.start(start.template, start.domain, start.claim)
        except CoralError as error:
            self._journal.say("instance", error.message, fault=True)
            self._set_back(start.template, str(error))

    def _set_back(self, template: Template, reason: str) -> None:
        setback = self.setbacks.failed(template, reason)
        if setback.failures >= START_ATTEMPTS:
            self._fail(
                EngineError(
                    f"an instance of {template.model} has failed {setback.failures} times: {reason}",
                    mend="the logs of its processes lie in the state folder, under run/",
                )
            )

    def _fail(self, error: CoralError) -> None:
        """It cannot come up. Once it has been up it goes on."""
        if not self.up.done():
            self.up.set_exception(error)

    # ------------------------------------------------------------ as owner of machines

    def machine_changed(self) -> None:
        self.kick()

    def fail_instances(self, machine: str, reason: str) -> None:
        self.instances.machine_gone(machine, reason)

    def machine_lost(self, machine: str, reason: str) -> None:
        self._events.machine_lost(machine, reason)

    def replan(self, reason: str) -> None:
        if not self._stopped:
            self.epochs.ask_again(reason)

    # ------------------------------------------------------------ as owner of instances

    def send_agent(self, machine: str, message: Message) -> bool:
        return self.machines.send(machine, message)

    def may_return(self, machine: str) -> bool:
        return self.machines.may_return(machine)

    def send_peer(self, peer: Peer, message: Message) -> bool:
        return self._control.send(peer, message)

    def admit(self, one: LiveInstance) -> None:
        peer, spec = one.peer, one.layout.spec
        assert peer is not None  # it has said that it is ready
        assert one.ready is not None
        self.setbacks.over(one.template)
        send: Callable[[Message], bool] = lambda message: self._control.send(peer, message)  # noqa: E731
        self._requests.admit(
            Target(
                one.id,
                one.model,
                self._requests_per_s(one.template),
                send,
                max_request_tokens=min(one.ready.max_request_tokens, spec.max_model_len),
                expected_output_tokens=spec.expected_output_tokens,
                kv_tokens=one.ready.kv_tokens,
                domain=one.domain,
                phase=one.template.phase,
            )
        )

    def _requests_per_s(self, template: Template) -> float:
        """Its throughput in requests, so that instances of all phases can be compared."""
        demand = next((model.demand for model in self.epochs.models if model.name == template.model), None)
        if demand is None:
            return template.throughput
        tokens = {"prefill": demand.input_tokens, "decode": demand.output_tokens, "mixed": 1.0}
        return template.throughput / max(1.0, tokens[template.phase])

    def stop_admitting(self, one: LiveInstance) -> None:
        self._requests.stop_admitting(one.id)

    def move_requests(self, one: LiveInstance, reason: str) -> None:
        self._requests.move_requests(one.id, reason)

    def load(self, one: LiveInstance) -> int:
        return self._requests.loads().get(one.id, 0)

    def instance_changed(self, one: LiveInstance, before: InstanceState) -> None:
        if one.state is not before:
            self._events.instance_changed(one.id, one.model, before.value, one.state.value)
            fresh = before is not InstanceState.READY and not one.adopted
            if one.state is InstanceState.FAILED and fresh:
                self._set_back(one.template, one.reason)
        self.kick()
