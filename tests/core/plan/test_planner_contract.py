from __future__ import annotations

import pytest
from coral_solver_highs.options import HighsOptions
from coral_solver_highs.solver import build as build_highs

from coral.core.plan.planners.coral import CoralPlanner, build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.solver import Solver
from coral.testing.planner import PlannerContract


class TestCoralPlanner(PlannerContract):
    @pytest.fixture
    def planner(self) -> CoralPlanner:
        return build(CoralOptions())

    @pytest.fixture
    def solver(self) -> Solver:
        return build_highs(HighsOptions())


class TestPaperForm(TestCoralPlanner):
    @pytest.fixture
    def planner(self) -> CoralPlanner:
        return build(CoralOptions(form="paper"))


class TestWithoutReductions(TestCoralPlanner):
    @pytest.fixture
    def planner(self) -> CoralPlanner:
        return build(CoralOptions(reductions=False))


class TestSifted(TestCoralPlanner):
    @pytest.fixture
    def planner(self) -> CoralPlanner:
        return build(CoralOptions(sift_above=0))
