"""Which solvers get a process of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coral.core.plugins import Registry
from coral.core.solve.supervised import SupervisedSolver
from coral.hookspecs.solver import Solver

if TYPE_CHECKING:
    from pydantic import BaseModel


def supervised_solver(
    registry: Registry,
    name: str,
    options: BaseModel | Mapping[str, Any] | None = None,
    *,
    time_limit_s: float | None,
) -> Solver:
    """The solver of that name: in a process of its own where its solves have a time limit, which is then
    kept, and where it may abort its process; else in this one.

    `options` as `Registry.build` takes them. Raises PluginError where there is no such solver. Use it as a
    context or `close` it where it is a `SupervisedSolver` and the process should end before its caller.
    """
    offering = registry.offering("solver", name)
    if options is None or isinstance(options, Mapping):
        model: type[BaseModel] = registry.options_model("solver", name)
        options = model.model_validate(dict(options or {}))
    if time_limit_s is None:
        solver: Solver = registry.build("solver", name, options)
        if not solver.features.may_abort_process:
            return solver
    return SupervisedSolver(name, options.model_dump(mode="json"), offering.record)
