"""Plans for the controller: the planner process, and greedy where that fails and nothing runs."""

from __future__ import annotations

from pathlib import Path

from coral.core.config import Config
from coral.core.generate.library import open_library
from coral.core.plan.greedy import greedy_plan
from coral.core.serve.coordinator.planner_link import PlannerLink
from coral.core.serve.planner.deadline import PlannerDeadline
from coral.core.serve.planner.setup import Chosen, PlannerSetup
from coral.hookspecs.planner import View
from coral.types.plan import Plan

MARGIN_S = 10.0
"""What an ask may take beyond the solver's own time limit: building the program, checking the answer."""
UNLIMITED_S = 600.0
"""Deadline of an ask where the config gives the solver no time limit."""
START_S = 60.0


def planner_setup(config: Config) -> PlannerSetup:
    """What the planner process is told, from the sections `plan.planner` and `solver`."""
    return PlannerSetup(
        planner=Chosen(
            use=config.plan.planner.use, options=config.plan.planner.options.model_dump(mode="json")
        ),
        solver=Chosen(use=config.solver.use, options=config.solver.options.model_dump(mode="json")),
        solver_time_limit_s=config.solver.time_limit,
        plugin_paths=tuple(str(path) for path in config.plugins.paths),
        grace_s=config.serve.grace,
        solve_limit_s=2 * answer_s(config),
    )


def answer_s(config: Config) -> float:
    """The hard deadline of one ask."""
    limit = config.solver.time_limit
    return UNLIMITED_S if limit is None else limit + MARGIN_S


def planner_deadline(config: Config) -> PlannerDeadline:
    return PlannerDeadline(answer_s=answer_s(config), start_s=START_S)


class Planning:
    """`coral.core.serve.coordinator.epochs.PlanSource`."""

    def __init__(self, link: PlannerLink, library: Path) -> None:
        self._link = link
        self._library = library

    async def ask(self, view: View, *, patience_s: float) -> Plan:
        return await self._link.ask(view, patience_s=patience_s)

    def fallback(self, view: View) -> Plan:
        return greedy_plan(view, open_library(self._library))
