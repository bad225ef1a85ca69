"""Planners: decide which machines to hold and which instances to run.

`ProgramBuilder` is the public way to write a `Program` for a solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component
from coral.hookspecs.program_builder import ProgramBuilder
from coral.hookspecs.solver import Solver
from coral.types.hardware import Machine, NodeType, Offer
from coral.types.model import ModelSpec, Phase
from coral.types.placement import Template
from coral.types.plan import Plan, RunningInstance

__all__ = [
    "Library",
    "PlanOptions",
    "Planner",
    "PlannerHooks",
    "ProgramBuilder",
    "TemplateTable",
    "View",
    "node_types_of",
]


class PlanOptions(Struct, frozen=True, kw_only=True):
    """The `plan:` section of the config, as a planner needs it. The paper's switches are
    `target_utilization=1, slices=False, couple_phases=False`."""

    amortize_s: float = 3600.0
    target_utilization: float = 0.8
    slices: bool = True
    couple_phases: bool = True
    gap: float = 1e-4
    time_limit_s: float | None = 30.0
    work_limit: int | None = None
    budget_usd_h: float | None = None
    """Most that all machines may cost; then demand is served as far as that goes."""
    spot_share: float = 1.0
    """Share of each service's demand that may depend on spot machines."""


class View(Struct, frozen=True, kw_only=True):
    """What a planner sees. `machines` are held and still wanted; offers say what more can be had.

    Machines whose cloud has announced their end are in `leaving` alone, and what runs there is not in
    `running`: it is to be replaced. `notes`: where the demand comes from, for people; they become notes of
    the plan.
    """

    models: tuple[ModelSpec, ...]
    offers: tuple[Offer, ...]
    machines: tuple[Machine, ...] = ()
    running: tuple[RunningInstance, ...] = ()
    leaving: tuple[Machine, ...] = ()
    notes: tuple[str, ...] = ()
    options: PlanOptions = PlanOptions()


class TemplateTable(Struct, frozen=True, kw_only=True, eq=False):
    """All templates of one (model, phase): n templates over k node types.

    `usage[i, c]` nodes of type `node_types[c]` in template i; `throughput[i]` in the phase's unit.
    `irreducible[i]` is False where a split of its nodes into other templates does as well
    (MATH: lossless to drop, except where it is running).
    """

    node_types: tuple[NodeType, ...]
    usage: NDArray[np.int16]
    throughput: NDArray[np.float64]
    irreducible: NDArray[np.bool_]


class Library(Protocol):
    def table(self, model: str, phase: Phase) -> TemplateTable:
        """Raises LibraryError where the library holds nothing for it."""
        ...

    def template(self, model: str, phase: Phase, row: int) -> Template:
        """Row `row` of the table with its placement."""
        ...


class Planner(Protocol):
    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """The best plan found within the options' limits. Demand is soft: where it cannot all be
        served the plan serves what it can, and its `services` say what is missing. Budget and caps are hard;
        what else of the view's options does not hold is in `Plan.unkept`."""
        ...


def node_types_of(machine_types: Sequence[str | NodeType]) -> tuple[NodeType, ...]:
    """Parse node types; a convenience for planners and tests."""
    return tuple(t if isinstance(t, NodeType) else NodeType.parse(t) for t in machine_types)


class PlannerHooks:
    @hookspec
    def coral_planners(self) -> list[Component]:  # type: ignore[empty-body]
        """Planners this plugin offers. `build(options)` returns a `Planner`."""
