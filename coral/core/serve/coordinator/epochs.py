"""Epochs: when to plan, what the planner is shown, and which of its plans is carried out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from coral.core.operate.reconcile import (
    INSTANCE_WANTED,
    MACHINE_HELD,
    Bounds,
    HeldInstance,
    settled,
)
from coral.core.operate.served import Asked
from coral.core.operate.worth import is_whole, reason_to_stay
from coral.core.serve.coordinator.demand.watch import DemandWatch, Forecasts
from coral.core.serve.coordinator.instances import Instances
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.machines import Machines
from coral.core.serve.coordinator.memory import Memory
from coral.errors import CloudError, CoralError, InfeasibleError, SolverError
from coral.hookspecs.planner import PlanOptions, View
from coral.types.model import ModelSpec
from coral.types.plan import Plan, RunningInstance

SETTLE_S = 0.5
"""Several reasons to plan again within this time are one."""
PACE_S = (0.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Least time between plans that events ask for, one after another; at rest for `CALM_S` it starts over."""
CALM_S = 120.0


class PlanEvents(Protocol):
    """Plugins that listen; see `coral.hookspecs.events`."""

    def plan_made(self, plan: Plan, previous: Plan | None) -> None: ...

    def refuse_plan(self, plan: Plan, previous: Plan | None) -> str | None: ...


class PlanSource(Protocol):
    async def ask(self, view: View, *, patience_s: float) -> Plan: ...

    def fallback(self, view: View) -> Plan:
        """A plan without the planner, where nothing runs. Raises CoralError."""
        ...


class EpochOptions(Struct, frozen=True, kw_only=True):
    plan: PlanOptions
    every_s: float
    floor: float = 0.5
    min_saving: float = 0.01
    planner_patience_s: float = 60.0


class Epochs:
    """Called from the event loop only.

    `carry_out`: there is another plan. `fail`: there can be none, while nothing has been up yet.
    """

    def __init__(
        self,
        machines: Machines,
        instances: Instances,
        planner: PlanSource,
        events: PlanEvents,
        journal: Journal,
        memory: Memory,
        options: EpochOptions,
        *,
        held: Callable[[], list[HeldInstance]],
        carry_out: Callable[[], None],
        fail: Callable[[CoralError], None],
        demand: DemandWatch | None = None,
        forecasts: Forecasts | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models: Sequence[ModelSpec] = ()
        """As configured, which the template library is made for."""
        self.planned: Sequence[ModelSpec] = ()
        """With the demand that the running plan is made for."""
        self.plan: Plan | None = None
        self.settled: Plan | None = None
        """The running plan with the machines named that stay."""
        self._machines, self._instances = machines, instances
        self._planner, self._events = planner, events
        self._journal, self._memory = journal, memory
        self._options = options
        self._held, self._carry_out, self._fail = held, carry_out, fail
        self._demand, self._forecasts = demand, forecasts
        self._now = now
        self._wake = asyncio.Event()
        self._why = "start"
        self._urgent = 0
        self._asked_at = float("-inf")

    async def run(self) -> None:
        """Plan, again and again: every epoch, and whenever something happens that asks for it."""
        while True:
            self._wake.clear()
            self._asked_at = self._now()
            await self._epoch()
            try:
                async with asyncio.timeout(self._options.every_s):  # wait_for may lose a cancellation
                    await self._wake.wait()
            except TimeoutError:
                self._urgent = 0
                continue
            calm_s = self._now() - self._asked_at
            self._urgent = 0 if calm_s > CALM_S else min(self._urgent + 1, len(PACE_S) - 1)
            await asyncio.sleep(max(SETTLE_S, PACE_S[self._urgent] - calm_s))

    def ask_again(self, reason: str) -> None:
        """Something has happened that the running plan did not count on."""
        if not self._wake.is_set():
            self._why = reason
        self._wake.set()

    def resume(self, plan: Plan) -> None:
        """Carry out an earlier coordinator's plan until there is another."""
        self.plan = self.settled = plan
        self.planned = self.models
        self._journal.say("plan", f"the plan of the earlier run goes on: ${plan.price_usd_h:,.4g}/h")
        self._carry_out()

    def bounds(self) -> Bounds:
        """What a change of plan has to keep to."""
        return Bounds(
            supply=self._machines.market.supply(),
            budget_usd_h=self._options.plan.budget_usd_h,
            floor=self._options.floor,
            asked=self._asked(self.planned),
        )

    async def view(self) -> View:
        """Raises CloudError where a cloud cannot say what it offers."""
        offers = await self._machines.market.offers()
        demand = self._demand
        held = [one for one in self._machines.held() if one.state in MACHINE_HELD]
        leaving = {one.machine.id for one in held if one.leaving}
        return View(
            models=demand.models(self.models) if demand else tuple(self.models),
            offers=tuple(offers),
            machines=tuple(one.machine for one in held if not one.leaving),
            running=tuple(
                RunningInstance(id=one.id, template=one.template, domain=one.domain, nodes=one.claim.nodes)
                for one in self._instances.all().values()
                if one.state in INSTANCE_WANTED and not leaving.intersection(one.claim.machines)
            ),
            leaving=tuple(one.machine for one in held if one.leaving),
            notes=demand.notes(self.models) if demand else (),
            options=self._options.plan,
        )

    # ------------------------------------------------------------ inside

    async def _epoch(self) -> None:
        if self._demand is not None and self._forecasts is not None:
            try:
                await self._demand.forecast(self._forecasts)
            except CoralError as error:
                self._journal.say("plan", error.message, fault=True)
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
            if self.plan is None:
                self._fail(InfeasibleError(f"the first plan was refused by a plugin: {reason}"))
            return
        stays = self._stays(plan, view)
        if stays is not None:
            self._journal.say("plan", f"the running plan stays: {stays}")
        else:
            self._accept(plan, view)

    def _stays(self, plan: Plan, view: View) -> str | None:
        if self.plan is None:
            return None
        promises = view.options.spot_share < 1 or any(
            model.survive_zone or model.survive_machine for model in view.models
        )
        return reason_to_stay(
            plan,
            self.plan,
            whole=is_whole(self.plan, self._machines.held(), self._held()),
            asked=self._asked(view.models),
            asked_before=self._asked(self.planned),
            min_saving=self._options.min_saving,
            promises=promises,
        )

    def _accept(self, plan: Plan, view: View) -> None:
        previous, self.plan = self.plan, plan
        self._memory.plan(plan, self._why)
        self._why = "epoch"
        self.planned = view.models
        if self._demand is not None:
            self._demand.planned_for(view.models)
        self.settled = settled(plan, self._machines.held(), self._held(), self.bounds())
        self._events.plan_made(plan, previous)
        self._journal.say("plan", f"${plan.price_usd_h:,.4g}/h by {plan.planner}")
        for note in plan.notes:
            if previous is None or note not in previous.notes:
                self._journal.say("plan", note)
        for service in plan.services:
            if not service.met:
                share = f"{service.fraction:.0%} of the demand of {service.model} ({service.phase})"
                self._journal.say("plan", f"what can be rented serves {share}", fault=True)
        if not any(planned.count for planned in plan.instances):
            notes = "; ".join(plan.notes)
            self._fail(
                InfeasibleError(
                    "nothing that can be rented serves any of the models" + (f": {notes}" if notes else ""),
                    mend="offer larger machines or loosen the SLOs; `coral plan` shows what is missing",
                )
            )
        self._carry_out()

    def _asked(self, models: Sequence[ModelSpec]) -> dict[str, Asked]:
        return {
            model.name: Asked(
                requests_per_s=model.demand.requests_per_s / self._options.plan.target_utilization,
                input_tokens=model.demand.input_tokens,
                output_tokens=model.demand.output_tokens,
            )
            for model in models
        }
