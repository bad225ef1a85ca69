"""An ask in, an answer out: whatever goes wrong becomes an answer that says so."""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from coral.core.serve.net.wire import PlanAnswer, PlanAsk
from coral.errors import CoralError
from coral.hookspecs.planner import Library, Planner, View
from coral.hookspecs.solver import Solver

log = logging.getLogger(__name__)


class Answering:
    """The planner with its library and solver, loaded once."""

    def __init__(self, planner: Planner, library: Library, solver: Solver) -> None:
        self._planner = planner
        self._library = library
        self._solver = solver

    def answer(self, ask: PlanAsk) -> PlanAnswer:
        """Runs in a thread of its own. A planner may be anyone's: what it raises is told, and logged."""
        try:
            view = msgspec.convert(ask.view, View)
            plan = self._planner.plan(view, self._library, self._solver)
            plan = replace(plan, notes=(*view.notes, *plan.notes))
            return PlanAnswer(ask=ask.ask, plan=msgspec.to_builtins(plan))
        except msgspec.ValidationError as error:
            return PlanAnswer(ask=ask.ask, error=f"the view is malformed: {error}")
        except CoralError as error:
            return PlanAnswer(ask=ask.ask, error=str(error))
        except Exception as error:
            log.exception("the planner failed")
            return PlanAnswer(ask=ask.ask, error=f"the planner failed: {type(error).__name__}: {error}")
