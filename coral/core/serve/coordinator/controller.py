"""The controller: asks for plans, and brings machines and instances to what the plan wants."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from coral.core.operate.lifecycle import InstanceState
from coral.core.operate.reconcile import (
    INSTANCE_WANTED,
    MACHINE_HELD,
    Bounds,
    DrainInstance,
    EndMachine,
    Rent,
    StartInstance,
    reconcile,
    settled,
)
from coral.core.operate.served import Asked
from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.instances import Instances, Launches
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_instance import LiveInstance
from coral.core.serve.coordinator.machines import Machines
from coral.core.serve.coordinator.memory import Memory
from coral.core.serve.coordinator.requests import RequestTable
from coral.core.serve.coordinator.setbacks import Setbacks
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import Message
from coral.errors import CloudError, CoralError, EngineError, InfeasibleError, SolverError
from coral.hookspecs.cloud import Cloud
from coral.hookspecs.engine import Launch
from coral.hookspecs.planner import PlanOptions, View
from coral.types.model import ModelSpec
from coral.types.placement import Template
from coral.types.plan import Plan, RunningInstance

SETTLE_S = 0.5
"""Several reasons to plan again within this time are one."""
PAUSE_S = 5.0
START_ATTEMPTS = 3
"""Failed starts of an instance after which `coral serve` gives up, while nothing has been up yet."""


class ControllerEvents(Protocol):
    """Plugins that listen; see `coral.hookspecs.events`."""

    def plan_made(self, plan: Plan, previous: Plan | None) -> None: ...

    def instance_changed(self, instance: str, model: str, before: str, after: str) -> None: ...

    def machine_lost(self, machine: str, reason: str) -> None: ...

    def refuse_plan(self, plan: Plan, previous: Plan | None) -> str | None: ...


class PlanSource(Protocol):
    async def ask(self, view: View, *, patience_s: float) -> Plan: ...

    def fallback(self, view: View) -> Plan:
        """A plan without the planner, where nothing runs. Raises CoralError."""
        ...


class ControllerOptions(Struct, frozen=True, kw_only=True):
    plan: PlanOptions
    every_s: float
    start_timeout_s: float
    drain_timeout_s: float
    floor: float = 0.5
    planner_patience_s: float = 60.0
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
        tokens_address: Callable[[Peer], str],
        memory: Memory | None = None,
        cloud_names: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models = models
        memory = self._memory = memory or Memory()
        self.plan: Plan | None = None
        self._settled: Plan | None = None
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once everything the first plan wants is ready; failed where it cannot be."""
        self._control = control
        self._planner = planner
        self._requests = requests
        self._events = events
        self._journal = journal
        self._options = options
        self._now = now
        self._wake = asyncio.Event()
        self._kicked: asyncio.Handle | None = None
        self._stopped = False
        self._ticked = now()
        self.setbacks = Setbacks(now)
        self._notes: tuple[str, ...] = ()
        self._why = "start"
        self.machines = Machines(
            clouds,
            agent,
            control,
            self,
            journal,
            boot_timeout_s=options.start_timeout_s,
            return_timeout_s=options.return_timeout_s,
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

    async def run(self) -> None:
        """Plan, carry out, plan again: every epoch, and whenever something was lost."""
        while True:
            self._wake.clear()
            await self._epoch()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.every_s):  # wait_for may lose a cancellation
                    await self._wake.wait()
                await asyncio.sleep(SETTLE_S)

    def resume(self, plan: Plan) -> None:
        """Carry out an earlier coordinator's plan until there is another."""
        self.plan = self._settled = plan
        self._journal.say("plan", f"the plan of the earlier run goes on: ${plan.price_usd_h:,.4g}/h")
        self.kick()

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
        self.kick()

    def stop(self) -> None:
        """Carry nothing out any longer."""
        self._stopped = True
        if self._kicked is not None:
            self._kicked.cancel()

    async def view(self) -> View:
        offers = await self.machines.market.offers()
        return View(
            models=tuple(self.models),
            offers=tuple(offers),
            machines=tuple(one.machine for one in self.machines.held() if one.state in MACHINE_HELD),
            running=tuple(
                RunningInstance(id=one.id, template=one.template, domain=one.domain, nodes=one.claim.nodes)
                for one in self.instances.all().values()
                if one.state in INSTANCE_WANTED
            ),
            options=self._options.plan,
        )

    async def _epoch(self) -> None:
        try:
            view = await self.view()
        except CloudError as error:
            self._journal.say("plan", f"no offers: {error.message}", fault=True)
            if self.plan is None:
                raise
            self._journal.say("plan", "the running plan stays")
            return
        try:
            plan = await self._planner.ask(view, patience_s=self._options.planner_patience_s)
        except SolverError as error:
            self._journal.say("plan", f"no plan: {error.message}", fault=True)
            if view.running or self.plan is not None:
                self._journal.say("plan", "the running plan stays")
                return
            plan = self._planner.fallback(view)
        reason = self._events.refuse_plan(plan, self.plan)
        if reason is not None:
            self._journal.say("plan", f"refused by a plugin: {reason}", fault=True)
            if self.plan is None and not self.up.done():
                self.up.set_exception(InfeasibleError(f"the first plan was refused by a plugin: {reason}"))
            return
        self._accept(plan)

    def _accept(self, plan: Plan) -> None:
        previous, self.plan = self.plan, plan
        self._memory.plan(plan, self._why)
        self._why = "epoch"
        held = self.instances.held(self._requests.loads())
        self._settled = settled(plan, self.machines.held(), held, self._bounds())
        self._events.plan_made(plan, previous)
        self._journal.say("plan", f"${plan.price_usd_h:,.4g}/h by {plan.planner}")
        for note in plan.notes:
            if previous is None or note not in previous.notes:
                self._journal.say("plan", note)
        for service in plan.services:
            if not service.met:
                share = f"{service.fraction:.0%} of the demand of {service.model} ({service.phase})"
                self._journal.say("plan", f"what can be rented serves {share}", fault=True)
        if not any(planned.count for planned in plan.instances) and not self.up.done():
            notes = "; ".join(plan.notes)
            self.up.set_exception(
                InfeasibleError(
                    "nothing that can be rented serves any of the models" + (f": {notes}" if notes else ""),
                    mend="offer larger machines or loosen the SLOs; `coral plan` shows what is missing",
                )
            )
        self.kick()

    # ------------------------------------------------------------ carrying out

    def kick(self) -> None:
        """Compare with the plan at the loop's next turn."""
        if self._kicked is None and not self._stopped:
            self._kicked = asyncio.get_running_loop().call_soon(self._carry_out)

    def _carry_out(self) -> None:
        self._kicked = None
        if self.plan is None or self._settled is None or self._stopped:
            return
        held = self.instances.held(self._requests.loads())
        outdated = tuple(one.id for one in self.instances.all().values() if one.outdated)
        plan = replace(self._settled, leaves=(*self.plan.leaves, *outdated))
        schedule = reconcile(plan, self.machines.held(), held, self._bounds())
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
        wanted = sum(planned.count for planned in self.plan.instances)
        ready = [one for one in self.instances.all().values() if one.state is InstanceState.READY]
        if not self.up.done() and 0 < wanted <= len(ready):
            self.up.set_result(None)

    def _bounds(self) -> Bounds:
        options = self._options.plan
        return Bounds(
            supply=self.machines.market.supply(),
            budget_usd_h=options.budget_usd_h,
            floor=self._options.floor,
            asked={
                model.name: Asked(
                    requests_per_s=model.demand.requests_per_s / options.target_utilization,
                    input_tokens=model.demand.input_tokens,
                    output_tokens=model.demand.output_tokens,
                )
                for model in self.models
            },
        )

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
        if setback.failures >= START_ATTEMPTS and not self.up.done():
            self.up.set_exception(
                EngineError(
                    f"an instance of {template.model} has failed {setback.failures} times: {reason}",
                    mend="the logs of its processes lie in the state folder, under run/",
                )
            )

    # ------------------------------------------------------------ as owner of machines

    def machine_changed(self) -> None:
        self.kick()

    def fail_instances(self, machine: str, reason: str) -> None:
        self.instances.machine_gone(machine, reason)

    def machine_lost(self, machine: str, reason: str) -> None:
        self._events.machine_lost(machine, reason)

    def replan(self, reason: str) -> None:
        if not self._stopped:
            self._why = reason
            self._wake.set()

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
        demand = next((model.demand for model in self.models if model.name == template.model), None)
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
