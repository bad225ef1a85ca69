"""What the controller needs and preparation brings: until then nothing is planned and nothing started."""

from __future__ import annotations

from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.epochs import PlanSource
from coral.core.serve.coordinator.instances import Launches
from coral.core.serve.coordinator.specs import InstanceLayout
from coral.errors import CoralError
from coral.hookspecs.engine import Launch
from coral.hookspecs.planner import View
from coral.types.placement import Template
from coral.types.plan import Plan

EARLY = "models and templates are still being prepared"


class LaterLaunches:
    """`coral.core.serve.coordinator.instances.Launches` once `now` is set; until then CoralError."""

    def __init__(self) -> None:
        self.now: Launches | None = None

    def layout(self, instance: str, template: Template, claim: Claim) -> InstanceLayout:
        return self._ready().layout(instance, template, claim)

    def fingerprint(self, model: str) -> str:
        return self._ready().fingerprint(model)

    def scheduler(self, layout: InstanceLayout) -> Launch:
        return self._ready().scheduler(layout)

    def worker(self, layout: InstanceLayout, seat: int, scheduler_address: str) -> Launch:
        return self._ready().worker(layout, seat, scheduler_address)

    def _ready(self) -> Launches:
        if self.now is None:
            raise CoralError(EARLY)
        return self.now


class LaterPlans:
    """`coral.core.serve.coordinator.epochs.PlanSource` once `now` is set; until then CoralError."""

    def __init__(self) -> None:
        self.now: PlanSource | None = None

    async def ask(self, view: View, *, patience_s: float) -> Plan:
        return await self._ready().ask(view, patience_s=patience_s)

    def fallback(self, view: View) -> Plan:
        return self._ready().fallback(view)

    def _ready(self) -> PlanSource:
        if self.now is None:
            raise CoralError(EARLY)
        return self.now
