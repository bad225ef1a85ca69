"""How much of a model's demand instances serve, in requests/s: prefill and decode count together.

Mixed instances serve requests as they are. Prefill and decode instances of one domain serve as much as
the lesser of the two can, since a request needs both. So a floor on what is served is one on either phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from coral.core.operate.holdings import HeldInstance
from coral.types.hardware import Domain
from coral.types.model import Phase
from coral.types.placement import Template
from coral.types.plan import PlannedInstances

ROUNDING = 1e-9


class Asked(Struct, frozen=True, kw_only=True):
    """What is asked of a model: requests/s (with its headroom) and the mean tokens of one request."""

    requests_per_s: float = float("inf")
    input_tokens: float = 1.0
    output_tokens: float = 1.0


class Capacity:
    """Throughput of instances by model, phase and domain."""

    def __init__(self, asked: Mapping[str, Asked]) -> None:
        self._asked = asked
        self._totals: dict[str, dict[tuple[Phase, Domain], float]] = {}

    def add(self, template: Template, domain: Domain, count: int = 1) -> None:
        """A negative count takes away."""
        totals = self._totals.setdefault(template.model, {})
        key = (template.phase, domain)
        totals[key] = totals.get(key, 0.0) + count * template.throughput

    def models(self) -> Iterable[str]:
        return self._totals.keys()

    def served(self, model: str) -> float:
        """requests/s, at most what is asked."""
        asked = self._asked.get(model, Asked())
        totals = self._totals.get(model, {})
        able = sum(rate for (phase, _), rate in totals.items() if phase == "mixed")
        for domain in {domain for phase, domain in totals if phase == "prefill"}:
            prefill = totals["prefill", domain] / asked.input_tokens
            able += min(prefill, totals.get(("decode", domain), 0.0) / asked.output_tokens)
        return min(able, asked.requests_per_s)

    def total(self, model: str, phase: Phase) -> float:
        """Throughput of a phase in its own unit, wherever it is."""
        return sum(rate for (one, _), rate in self._totals.get(model, {}).items() if one == phase)


class Floors:
    """What the ready instances serve, against what the plan will serve and the floor below that.

    `planned`: what will serve in the end, with what it does. `floor`: share of that, of a model, which is to
    be served throughout a change. `go` says that an instance will serve no longer, `come` that one like that
    serves.
    """

    def __init__(
        self,
        planned: Iterable[HeldInstance | PlannedInstances],
        serving: Iterable[HeldInstance],
        asked: Mapping[str, Asked],
        floor: float,
    ) -> None:
        self.floor = floor
        self._planned, self._ready = Capacity(asked), Capacity(asked)
        for other in planned:
            self._planned.add(other.template, other.domain)
        for one in serving:
            self._ready.add(one.template, one.domain)

    def come(self, template: Template, domain: Domain, count: int = 1) -> None:
        """A negative count takes back."""
        self._ready.add(template, domain, count)

    def go(self, one: HeldInstance) -> None:
        self._ready.add(one.template, one.domain, -1)

    def back(self, one: HeldInstance) -> None:
        self._ready.add(one.template, one.domain, +1)

    def share(self, model: str) -> float:
        """What is served of what the plan will serve; 1 where that is nothing."""
        planned = self._planned.served(model)
        return self._ready.served(model) / planned if planned > 0 else 1.0

    def is_free(self, one: HeldInstance) -> bool:
        """Whether all that the plan will serve, or all that is served now, is served without it too: its
        successors are ready, or it needs none."""
        model, phase = one.template.model, one.template.phase
        planned = self._planned
        keep = min(planned.served(model), self._ready.served(model))
        also = min(planned.total(model, phase), self._ready.total(model, phase))
        self.go(one)
        served, rate = self._ready.served(model), self._ready.total(model, phase)
        self.back(one)
        return served >= keep * (1 - ROUNDING) and rate >= also * (1 - ROUNDING)

    def keeps(self, one: HeldInstance) -> bool:
        """Whether its model is no further below its floor without it."""
        return self.harm(one) <= ROUNDING

    def lack(self, model: str) -> float:
        """How far below its floor a model is, as a share of what the plan serves of it."""
        return max(0.0, self.floor - self.share(model))

    def harm(self, one: HeldInstance) -> float:
        """How much further below its floor its model is without it."""
        before = self.lack(one.template.model)
        self.go(one)
        after = self.lack(one.template.model)
        self.back(one)
        return after - before
