"""The mip solver."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_solvers() -> list[Component]:
    return [
        Component(
            name="mip",
            summary="CBC through python-mip, linear and mixed-integer programs straight from arrays",
            options="coral_solver_mip.options:MipOptions",
            build="coral_solver_mip.solver:build",
        )
    ]
