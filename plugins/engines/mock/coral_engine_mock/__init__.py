"""The mock engine: timing from a step cost, deterministic tokens, a KV ledger like a real engine's."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import EngineComponent


@hookimpl
def coral_engines() -> list[EngineComponent]:
    return [
        EngineComponent(
            name="mock",
            summary="no model: timing from a step cost, deterministic tokens, real KV bookkeeping",
            options="coral_engine_mock.options:MockOptions",
            build="coral_engine_mock.engine:build",
            load="coral_engine_mock.runner:load",
        )
    ]
