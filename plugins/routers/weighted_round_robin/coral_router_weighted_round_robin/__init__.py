"""The default router: instances in turn, in proportion to their weights."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_routers() -> list[Component]:
    return [
        Component(
            name="weighted-round-robin",
            summary="instances in turn, in proportion to their throughput",
            options="coral_router_weighted_round_robin.options:RoundRobinOptions",
            build="coral_router_weighted_round_robin.policy:build",
        )
    ]
