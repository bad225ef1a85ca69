"""The Ray executor."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_executors() -> list[Component]:
    return [
        Component(
            name="ray",
            summary="A Ray cluster: one of its own on this machine, or one that runs already",
            options="coral_executor_ray.options:RayOptions",
            build="coral_executor_ray.executor:build",
        )
    ]
