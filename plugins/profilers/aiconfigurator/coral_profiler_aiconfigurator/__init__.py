"""The AIConfigurator profiler."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_profilers() -> list[Component]:
    return [
        Component(
            name="aiconfigurator",
            summary="step costs composed from measured kernels (H100, H200, B200, A100, L40S)",
            options="coral_profiler_aiconfigurator.options:AIConfiguratorOptions",
            build="coral_profiler_aiconfigurator.profiler:build",
        )
    ]
