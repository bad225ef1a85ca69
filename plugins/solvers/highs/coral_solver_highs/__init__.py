"""The HiGHS solver."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_solvers() -> list[Component]:
    return [
        Component(
            name="highs",
            summary="HiGHS: linear and mixed-integer programs straight from arrays",
            options="coral_solver_highs.options:HighsOptions",
            build="coral_solver_highs.solver:build",
        )
    ]
