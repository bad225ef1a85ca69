"""Plugins and the measuring of demand hear alike of requests that have finished."""

from __future__ import annotations

from coral.core.serve.coordinator.demand.watch import DemandWatch
from coral.core.serve.coordinator.requests.table import FinishListener


class Listeners:
    """`coral.core.serve.coordinator.requests.table.FinishListener`."""

    def __init__(self, plugins: FinishListener, demand: DemandWatch) -> None:
        self._plugins, self._demand = plugins, demand

    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        for one in (self._demand, self._plugins):
            one.request_finished(request, model, finish, prompt_tokens, output_tokens, seconds)
