"""The pyomo solver."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_solvers() -> list[Component]:
    return [
        Component(
            name="pyomo",
            summary="any solver that Pyomo knows",
            options="coral_solver_pyomo.options:PyomoOptions",
            build="coral_solver_pyomo.solver:build",
        )
    ]
