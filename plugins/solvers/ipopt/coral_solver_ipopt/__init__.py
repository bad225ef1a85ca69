"""The ipopt solver."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_solvers() -> list[Component]:
    return [
        Component(
            name="ipopt",
            summary="Ipopt through cyipopt, continuous programs and smooth fits",
            options="coral_solver_ipopt.options:IpoptOptions",
            build="coral_solver_ipopt.solver:build",
        )
    ]
