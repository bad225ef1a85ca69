"""The local cloud: agents on this machine, over machine types made of CPU threads and memory."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_clouds() -> list[Component]:
    return [
        Component(
            name="local",
            summary="this machine, cut into machine types made of CPU threads and memory",
            options="coral_cloud_local.options:LocalOptions",
            build="coral_cloud_local.cloud:build",
        )
    ]
