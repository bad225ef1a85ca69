"""What is asked of each model: measured at the front door, remembered, and made into what is planned for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from coral.core.operate.demand import DemandMeter, Measured, planned_demand
from coral.core.operate.departures import Drift, Jump
from coral.core.plan.forecast import Forecast
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.store import demand as stored
from coral.core.serve.store.database import Store
from coral.errors import StoreError
from coral.types.model import Demand, ModelSpec

SAMPLE_S = 60.0
PRUNE_S = 86_400.0
FITTING = 1.5
"""Ratio of mean lengths up to which templates that were built for other lengths still fit."""


class DemandOptions(Struct, frozen=True, kw_only=True):
    use: Literal["config", "measured", "forecast"] = "config"
    half_life_s: float = 600.0
    floor_share: float = 0.25


class Forecasts(Protocol):
    async def of(self, models: Sequence[str], until_s: float) -> dict[str, Forecast]:
        """By model, for those that can be forecast. `until_s`: seconds since the epoch. Raises CoralError."""
        ...


class DemandWatch:
    """Called from the event loop only. `percentiles`: of the SLO, by model.

    `on_departure(model, reason)`: the demand has left what the plan was made for. `on_lengths(model)`: its
    requests are no longer as long as those its templates were built for.
    """

    def __init__(
        self,
        percentiles: Mapping[str, float],
        options: DemandOptions,
        journal: Journal,
        store: Store | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self.on_departure: Callable[[str, str], None] = lambda model, reason: None
        self.on_lengths: Callable[[str], None] = lambda model: None
        self._journal = journal
        self._store = store
        self._now, self._wall = now, wall
        start = now()
        half_life_s = options.half_life_s
        self._meters = {name: DemandMeter(half_life_s, p, start) for name, p in percentiles.items()}
        self._jumps = {name: Jump() for name in percentiles}
        self._drifts = {name: Drift() for name in percentiles}
        self._fits = {name: Drift(FITTING) for name in percentiles}
        self._planned: dict[str, Demand] = {}
        self._built: dict[str, Demand] = {}
        self._forecasts: dict[str, Forecast] = {}
        self._sampled, self._pruned = start, start - PRUNE_S
        self._restore()

    # ------------------------------------------------------------ what happens

    def arrived(self, model: str) -> None:
        """A request for it has come, whether or not there is room for it."""
        if (meter := self._meters.get(model)) is not None:
            meter.arrived(self._now())

    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        """Of requests that were cut off nobody knows how long they would have been."""
        if finish in ("stop", "length") and (meter := self._meters.get(model)) is not None:
            meter.finished(self._now(), prompt_tokens, output_tokens)

    def built_for(self, models: Sequence[ModelSpec]) -> None:
        """The template library is made for these models' demand."""
        self._built = {model.name: model.demand for model in models}
        self._planned = {**self._built, **self._planned}

    def planned_for(self, models: Sequence[ModelSpec]) -> None:
        """The plan that is carried out is made for these models' demand."""
        self._planned = {model.name: model.demand for model in models}

    def tick(self) -> None:
        """Called every second or so."""
        now = self._now()
        if now - self._sampled >= SAMPLE_S:
            self._sampled = now
            self._sample(now)
        for name, meter in self._meters.items():
            if name in self._planned:
                self._look(name, meter.measured(now))

    # ------------------------------------------------------------ what it comes to

    async def forecast(self, forecasts: Forecasts) -> None:
        """Ask for the rates to come, where they are planned for. Raises CoralError."""
        if self.options.use == "forecast":
            self._forecasts = await forecasts.of(list(self._meters), self._wall())

    def models(self, specs: Sequence[ModelSpec]) -> tuple[ModelSpec, ...]:
        """With the demand that is to be planned for."""
        return tuple(replace(spec, demand=self.demand(spec.name, spec.demand)) for spec in specs)

    def demand(self, model: str, configured: Demand) -> Demand:
        meter = self._meters.get(model)
        if self.options.use == "config" or meter is None:
            return configured
        forecast = self._forecasts.get(model) if self.options.use == "forecast" else None
        return planned_demand(
            configured,
            meter.measured(self._now()),
            half_life_s=self.options.half_life_s,
            least_share=self.options.floor_share,
            expected_per_s=forecast.peak_per_s if forecast else None,
        )

    def notes(self, specs: Sequence[ModelSpec]) -> tuple[str, ...]:
        """Where the demand comes from, for people; with figures that are round, so that they stay the same
        while little changes."""
        if self.options.use == "config":
            return ()
        found = []
        for spec in self.models(specs):
            forecast = self._forecasts.get(spec.name) if self.options.use == "forecast" else None
            how = f"forecast by {forecast.method}" if forecast else "measured at the front door"
            rate = f"{spec.demand.requests_per_s:.2g} requests/s"
            lengths = f"{spec.demand.input_tokens:.2g} + {spec.demand.output_tokens:.2g} tokens"
            found.append(f"demand of {spec.name}: {rate} of {lengths}, {how}")
            if not self._fit(spec.name, spec.demand):
                found.append(
                    f"requests for {spec.name} are not as long as those its templates were built for"
                )
        return tuple(found)

    def state(self) -> dict[str, object]:
        """Plain JSON, by model."""
        now = self._now()
        return {name: self._state(name, meter.measured(now)) for name, meter in self._meters.items()}

    # ------------------------------------------------------------ inside

    def _state(self, name: str, measured: Measured) -> dict[str, object]:
        planned = self._planned.get(name)
        forecast = self._forecasts.get(name)
        return {
            "use": self.options.use,
            "measured_requests_per_s": round(measured.requests_per_s, 4),
            "quick_requests_per_s": round(measured.quick_per_s, 4),
            "measured_input_tokens": round(measured.input_tokens, 1),
            "measured_output_tokens": round(measured.output_tokens, 1),
            "measured_for_s": round(measured.age_s, 1),
            "forecast_requests_per_s": round(forecast.peak_per_s, 4) if forecast else None,
            "planned_requests_per_s": round(planned.requests_per_s, 4) if planned else None,
            "planned_input_tokens": round(planned.input_tokens, 1) if planned else None,
            "planned_output_tokens": round(planned.output_tokens, 1) if planned else None,
        }

    def _look(self, name: str, measured: Measured) -> None:
        planned, quick = self._planned[name], measured.quick_per_s
        if self._jumps[name].look(measured, planned):
            text = f"{quick:.3g} requests/s, the plan is made for {planned.requests_per_s:.3g}"
            self._depart(name, f"demand of {name} has jumped: {text}")
        if self._drifts[name].look(measured, planned):
            seen = f"{measured.input_tokens:.0f} + {measured.output_tokens:.0f} tokens"
            text = f"{seen}, the plan is made for {planned.input_tokens:.0f} + {planned.output_tokens:.0f}"
            self._depart(name, f"requests for {name} have changed in length: {text}")
        if name in self._built and self._fits[name].look(measured, self._built[name]):
            self.on_lengths(name)

    def _depart(self, name: str, reason: str) -> None:
        follow = self.options.use != "config"
        hint = "" if follow else " (plan.demand.use: measured would follow)"
        self._journal.say("plan", reason + hint)
        if follow:
            self.on_departure(name, reason)

    def _fit(self, name: str, demand: Demand) -> bool:
        built = self._built.get(name)
        if built is None:
            return True
        ratios = (demand.input_tokens / built.input_tokens, demand.output_tokens / built.output_tokens)
        return all(1 / FITTING < ratio < FITTING for ratio in ratios)

    def _sample(self, now: float) -> None:
        for name, meter in self._meters.items():
            sample = meter.sample(now, self._wall())
            if self._store is not None:
                stored.add_sample(self._store, name, sample)
        if self._store is not None and now - self._pruned >= PRUNE_S:
            self._pruned = now
            stored.prune(self._store, now_s=self._wall())

    def _restore(self) -> None:
        """What an earlier coordinator has measured."""
        if self._store is None:
            return
        since_s = self._wall() - 20 * self.options.half_life_s
        for name, meter in self._meters.items():
            try:
                meter.restore(stored.samples(self._store, name, since_s=since_s), self._now())
            except StoreError as error:
                self._journal.say("plan", f"the demand seen before is not known: {error.message}", fault=True)
                return
