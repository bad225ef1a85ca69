from __future__ import annotations

import pytest
from coral_solver_highs.options import HighsOptions
from coral_solver_highs.solver import build as build_highs

from coral.core.plan.planners.cauchy import build as build_cauchy
from coral.core.plan.planners.cauchy_options import CauchyOptions
from coral.core.plan.planners.homo import build as build_homo
from coral.core.plan.planners.homo_options import HomoOptions
from coral.hookspecs.planner import Planner
from coral.hookspecs.solver import Solver
from coral.testing.planner import PlannerContract


class TestHomo(PlannerContract):
    optimal = False

    @pytest.fixture
    def planner(self) -> Planner:
        return build_homo(HomoOptions())


class TestHomoUntrimmed(TestHomo):
    @pytest.fixture
    def planner(self) -> Planner:
        return build_homo(HomoOptions(trim_last=False, order="in_turn", phases="together"))


class TestHomoBest(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        return build_homo(HomoOptions(choose="ilp"))

    @pytest.fixture
    def solver(self) -> Solver:
        return build_highs(HighsOptions())


class TestCauchy(PlannerContract):
    optimal = False

    @pytest.fixture
    def planner(self) -> Planner:
        return build_cauchy(CauchyOptions())


class TestCauchyBest(PlannerContract):
    """`mixed` models have single instances for combos, so their best set is the best plan."""

    @pytest.fixture
    def planner(self) -> Planner:
        return build_cauchy(CauchyOptions(choose="ilp"))

    @pytest.fixture
    def solver(self) -> Solver:
        return build_highs(HighsOptions())
