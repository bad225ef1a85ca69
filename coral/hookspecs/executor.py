"""Executors: where the work of building a template library runs."""

from __future__ import annotations

from concurrent.futures import Executor

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component

__all__ = ["Executor", "ExecutorHooks"]


class ExecutorHooks:
    @hookspec
    def coral_executors(self) -> list[Component]:  # type: ignore[empty-body]
        """Executors this plugin offers. `build(options)` returns a `concurrent.futures.Executor`."""
