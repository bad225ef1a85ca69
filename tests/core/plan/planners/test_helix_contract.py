from __future__ import annotations

import pytest

from coral.core.plan.planners.helix import build
from coral.core.plan.planners.helix_options import HelixOptions
from coral.hookspecs.planner import Planner
from coral.hookspecs.solver import Solver
from coral.testing.planner import PlannerContract


class TestHelix(PlannerContract):
    optimal = False

    @pytest.fixture
    def planner(self) -> Planner:
        return build(HelixOptions())

    @pytest.fixture
    def solver(self, highs: Solver) -> Solver:
        return highs
