"""`python -m coral.core.serve.coordinator.demand.forecast_process`: started by the coordinator.

Reads one `ForecastAsk` from its standard input and prints one `ForecastAnswer`, both JSON in a line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from coral.core.plan.forecast import Forecast, forecast, rates
from coral.core.serve.coordinator.demand.forecasting import ForecastAnswer, ForecastAsk
from coral.core.serve.store.database import Store
from coral.core.serve.store.demand import KEEP_S, samples


def answer(ask: ForecastAsk) -> ForecastAnswer:
    found: dict[str, Forecast] = {}
    faults: dict[str, str] = {}
    store = Store(Path(ask.store), read_only=True)
    for name in ask.models:
        try:
            history = samples(store, name, since_s=ask.until_s - KEEP_S)
            one = forecast(rates(history, until_s=ask.until_s), horizon_s=ask.horizon_s)
        except Exception as error:  # of the library, for what it is given: told
            faults[name] = f"{type(error).__name__}: {error}"
        else:
            if one is not None:
                found[name] = one
    store.close()
    return ForecastAnswer(forecasts=found, faults=faults)


def main() -> int:
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not come between
    ask = msgspec.json.decode(sys.stdin.buffer.readline(), type=ForecastAsk)
    out.write(msgspec.json.encode(answer(ask)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
