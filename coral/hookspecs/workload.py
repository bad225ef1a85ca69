"""Workloads: streams of requests for benchmarks and simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component


class Arrival(Struct, frozen=True, kw_only=True):
    """A request `at_s` seconds after the start."""

    at_s: float
    model: str
    input_tokens: int
    output_tokens: int


class Workload(Protocol):
    def requests(self, seed: int) -> Iterator[Arrival]:
        """Arrivals in order of time; the same seed gives the same requests."""
        ...


class WorkloadHooks:
    @hookspec
    def coral_workloads(self) -> list[Component]:  # type: ignore[empty-body]
        """Workloads this plugin offers. `build(options)` returns a `Workload`."""
