"""Demand from the front door to the planner: counted, remembered, said when it departs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from coral.core.config import parse_config
from coral.core.operate.demand import DemandSample
from coral.core.plan.forecast import Forecast
from coral.core.plugins import load_plugins
from coral.core.serve.coordinator.demand.forecasting import ForecastProcess
from coral.core.serve.coordinator.demand.watch import SAMPLE_S, DemandOptions, DemandWatch
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.store import demand as stored
from coral.core.serve.store.database import Store
from coral.errors import ConfigError, SolverError
from coral.types.model import Demand, ModelShape, ModelSpec, RequestClass, Slo

START_S = 1_800_000_000.0
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=4,
    head_dim=16,
    intermediate=128,
    vocab=256,
    max_positions=512,
)
MODEL = ModelSpec(
    name="m",
    shape=SHAPE,
    slo=Slo(prefill_s=1.0, decode_s=0.1),
    demand=Demand(
        requests_per_s=2.0,
        classes=(RequestClass(input_tokens=100.0, output_tokens=20.0),),
        input_tokens_quantile=100.0,
    ),
    phases=("mixed",),
    engine="mock",
)


class World:
    def __init__(self, use: str, store: Store | None = None, start: float = 0.0) -> None:
        self.now = start
        self.journal = Journal()
        self.reasons: list[str] = []
        self.lengths: list[str] = []
        self.watch = DemandWatch(
            {"m": 0.95},
            DemandOptions(use=use, half_life_s=600.0, floor_share=0.25),  # type: ignore[arg-type]
            self.journal,
            store,
            now=lambda: self.now,
            wall=lambda: START_S + self.now,
        )
        self.watch.on_departure = lambda model, reason: self.reasons.append(reason)
        self.watch.on_lengths = self.lengths.append
        self.watch.built_for([MODEL])
        self.watch.planned_for([MODEL])

    def go_on(self, seconds: int, per_s: int, tokens: tuple[int, int] = (100, 20)) -> None:
        for _ in range(seconds):
            for _ in range(per_s):
                self.watch.arrived("m")
                self.watch.request_finished("r", "m", "stop", *tokens, 1.0)
            self.now += 1.0
            self.watch.tick()


def test_the_config_is_planned_for_and_departures_are_only_said() -> None:
    world = World("config")
    world.go_on(1200, 6)
    assert world.watch.models([MODEL]) == (MODEL,)
    assert world.watch.notes([MODEL]) == ()
    assert world.reasons == []
    [said] = [entry.text for entry in world.journal.entries]
    assert "has jumped" in said
    assert "plan.demand.use: measured would follow" in said
    assert world.watch.state()["m"]["measured_requests_per_s"] == pytest.approx(6.0, rel=0.02)  # type: ignore[index]


def test_a_jump_asks_for_a_plan_that_follows_at_once() -> None:
    world = World("measured")
    world.go_on(1200, 2)
    assert world.reasons == []
    world.go_on(60, 10)
    assert len(world.reasons) == 1
    [spec] = world.watch.models([MODEL])
    assert spec.demand.requests_per_s > 4.0
    world.watch.planned_for([spec])
    [note] = world.watch.notes([MODEL])
    assert "measured at the front door" in note


def test_lengths_that_depart_are_said_and_so_are_templates_that_no_longer_fit() -> None:
    world = World("measured")
    world.go_on(600, 2)
    world.go_on(1800, 2, tokens=(400, 20))
    assert any("changed in length" in reason for reason in world.reasons)
    assert world.lengths == ["m"]
    assert any("templates were built for" in note for note in world.watch.notes([MODEL]))


def test_what_was_refused_counts_and_what_was_cut_off_has_no_length() -> None:
    world = World("measured")
    for _ in range(600):
        world.watch.arrived("m")
        world.watch.request_finished("r", "m", "abort", 5000, 1, 1.0)
        world.watch.arrived("another model")
        world.now += 0.5
        world.watch.tick()
    [spec] = world.watch.models([MODEL])
    assert spec.demand.requests_per_s == pytest.approx(2.0, rel=0.02)
    assert spec.demand.classes == MODEL.demand.classes


def test_a_restart_knows_the_demand(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = Store(path)
    world = World("measured", store)
    world.go_on(3600, 5, tokens=(300, 40))
    [before] = world.watch.models([MODEL])
    store.close()
    again = World("measured", Store(path), start=3610.0)
    [after] = again.watch.models([MODEL])
    assert after.demand.requests_per_s == pytest.approx(before.demand.requests_per_s, rel=0.1)
    assert after.demand.input_tokens == pytest.approx(before.demand.input_tokens, rel=0.1)


class Known:
    async def of(self, models: Sequence[str], until_s: float) -> dict[str, Forecast]:
        return {name: Forecast(peak_per_s=9.0, method="daily season", steps=200) for name in models}


def test_a_forecast_is_planned_for_and_said() -> None:
    world = World("forecast")
    world.go_on(12_000, 1)
    asyncio.run(world.watch.forecast(Known()))
    [spec] = world.watch.models([MODEL])
    assert spec.demand.requests_per_s == pytest.approx(9.0, rel=0.02)
    [note] = world.watch.notes([MODEL])
    assert "forecast by daily season" in note


def test_the_forecast_is_made_by_a_process_of_its_own_from_the_store(tmp_path: Path) -> None:
    pytest.importorskip("statsmodels", reason="statsmodels is not installed")
    store = Store(tmp_path / "store.db")
    for number in range(60):
        sample = DemandSample(at_s=START_S + number * 900.0, span_s=900.0, requests=1800)
        stored.add_sample(store, "m", sample)
    store.close()
    process = ForecastProcess(tmp_path / "store.db", tmp_path / "log", horizon_s=900.0)
    found = asyncio.run(process.of(["m", "unknown"], START_S + 59 * 900.0))
    assert found.keys() == {"m"}, "of the other one nothing is known"
    assert found["m"].peak_per_s == pytest.approx(2.0, rel=0.02)


def test_a_forecast_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    Store(tmp_path / "store.db").close()
    process = ForecastProcess(tmp_path / "store.db", tmp_path / "log", horizon_s=900.0, deadline_s=0.01)
    with pytest.raises(SolverError, match=r"no forecast within 0\.01 s"):
        asyncio.run(process.of(["m"], START_S))


def test_a_forecast_without_its_library_is_refused_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(ConfigError, match=r"pip install 'coral-llm\[forecast\]'"):
        parse_config(
            {
                "models": [
                    {
                        "name": "m",
                        "source": "org/m",
                        "slo": {"prefill": "1s", "decode": "100ms"},
                        "demand": {"requests_per_s": 1, "input_tokens": 10, "output_tokens": 10},
                    }
                ],
                "plan": {"demand": {"use": "forecast"}},
            },
            registry=load_plugins(),
        )


def test_samples_are_taken_every_minute(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    world = World("config", store)
    world.go_on(600, 1)
    found = stored.samples(store, "m", since_s=0.0)
    assert len(found) == 600 // SAMPLE_S
    assert sum(sample.requests for sample in found) == 600
