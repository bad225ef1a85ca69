"""Offers from the config or a CSV file: to plan with, not to rent."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_clouds() -> list[Component]:
    return [
        Component(
            name="static",
            summary="offers written down in the config or a CSV file, to plan with",
            options="coral_cloud_static.options:StaticOptions",
            build="coral_cloud_static.cloud:build",
        )
    ]
