"""Forecasts, made in a process of their own: smoothing takes a core, and its library seconds to import."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from coral.core.plan.forecast import Forecast
from coral.core.serve.coordinator.side_process import SideProcess
from coral.errors import SolverError

MODULE = "coral.core.serve.coordinator.demand.forecast_process"
DEADLINE_S = 60.0


class ForecastAsk(Struct, frozen=True, kw_only=True):
    """`store`: the file in which the samples are. `until_s`: seconds since the epoch."""

    store: str
    models: tuple[str, ...]
    until_s: float
    horizon_s: float


class ForecastAnswer(Struct, frozen=True, kw_only=True):
    """`faults`: by model, why there is none."""

    forecasts: dict[str, Forecast]
    faults: dict[str, str] = {}


class ForecastProcess:
    """`coral.core.serve.coordinator.demand.watch.Forecasts`. `store`: the file in which the samples are.
    `horizon_s`: how far a plan has to reach."""

    def __init__(self, store: Path, log: Path, *, horizon_s: float, deadline_s: float = DEADLINE_S) -> None:
        self._store, self._log = store, log
        self._horizon_s = horizon_s
        self._deadline_s = deadline_s

    async def of(self, models: Sequence[str], until_s: float) -> dict[str, Forecast]:
        """By model, for those that can be forecast. Raises SolverError where the process fails, or takes
        longer than its deadline; it is ended then."""
        ask = ForecastAsk(
            store=str(self._store),
            models=tuple(models),
            until_s=until_s,
            horizon_s=self._horizon_s,
        )
        process = await SideProcess.start((sys.executable, "-m", MODULE), self._log, piped=True)
        try:
            async with asyncio.timeout(self._deadline_s):
                process.stdin.write(msgspec.json.encode(ask) + b"\n")
                await process.stdin.drain()
                process.stdin.close()
                line = await process.stdout.readline()
        except (TimeoutError, ConnectionError, ValueError):
            raise SolverError(f"no forecast within {self._deadline_s:g} s\n{process.tail()}") from None
        finally:
            await process.end(grace_s=0.0)
        try:
            answer = msgspec.json.decode(line, type=ForecastAnswer)
        except msgspec.DecodeError:
            raise SolverError(f"no forecast: the process ended\n{process.tail()}") from None
        if answer.faults:
            faults = [f"no forecast for {name}: {why}" for name, why in answer.faults.items()]
            raise SolverError("; ".join(faults))
        return answer.forecasts
