"""What the config says of demand, made into what measures and forecasts it."""

from __future__ import annotations

from pathlib import Path

from coral.core.config import Config
from coral.core.serve.coordinator.demand.forecasting import ForecastProcess
from coral.core.serve.coordinator.demand.watch import DemandOptions, DemandWatch
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.store.database import FILE, Store


def demand_watch(config: Config, journal: Journal, store: Store | None) -> DemandWatch:
    """Of all models of the config."""
    asked = config.plan.demand
    return DemandWatch(
        {model.name: model.slo.percentile for model in config.models},
        DemandOptions(use=asked.use, half_life_s=asked.half_life, floor_share=asked.floor_share),
        journal,
        store,
    )


def forecasts(config: Config, log: Path) -> ForecastProcess:
    """As far ahead as a plan has to reach: until the next one, and until what that one starts is ready."""
    initialization_s = max(model.initialization for model in config.models)
    return ForecastProcess(
        Path(config.state.folder) / FILE, log, horizon_s=config.plan.every + initialization_s
    )
