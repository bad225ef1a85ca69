from __future__ import annotations

from typing import Any

import pytest

from coral.core.plan.blamed import BlamedPlanner
from coral.errors import CoralError, SolverError
from coral.testing.planner import LIBRARY, SMALL, NoSolver
from coral.testing.tables import spec, view

WORLD = view([spec("a", 1.0)], [SMALL])


class Raising:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def plan(self, *asked: Any) -> Any:
        raise self.error


class Silent:
    def plan(self, *asked: Any) -> Any:
        return {"machines": []}


def test_what_a_planner_raises_is_told_with_its_name_and_place() -> None:
    with pytest.raises(CoralError, match=r"planner 'mine' failed: KeyError: 'x' \(test_blamed.py:\d+\)"):
        BlamedPlanner(Raising(KeyError("x")), "mine").plan(WORLD, LIBRARY, NoSolver())


def test_our_own_errors_stay_as_they_are() -> None:
    error = SolverError("no")
    with pytest.raises(SolverError) as raised:
        BlamedPlanner(Raising(error), "mine").plan(WORLD, LIBRARY, NoSolver())
    assert raised.value is error


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(CoralError, match="gave a dict, not a Plan"):
        BlamedPlanner(Silent(), "mine").plan(WORLD, LIBRARY, NoSolver())
