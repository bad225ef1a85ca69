from __future__ import annotations

import pytest

from coral.core.plan.greedy import greedy_plan
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.planner import PlannerContract
from coral.testing.tables import TableLibrary, offer, spec, view
from coral.testing.worlds import random_world
from coral.types.plan import Plan


class Greedy:
    """As a planner, to be held to the same contract."""

    def plan(self, world: object, library: object, solver: Solver) -> Plan:
        return greedy_plan(world, library)  # type: ignore[arg-type]


class TestGreedyContract(PlannerContract):
    optimal = False

    @pytest.fixture
    def planner(self) -> Greedy:
        return Greedy()


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
def test_it_holds_on_random_worlds_and_serves_most(slices: bool, coupled: bool) -> None:
    """It raises where what it chose does not pack; it is no worse than nothing, and never certified."""
    options = PlanOptions(slices=slices, couple_phases=coupled)
    served = []
    for seed in range(40):
        world = random_world(seed, options, sizes=(1, 2, 4), machine_sizes=(1, 3, 4), running=2)
        plan = greedy_plan(world.view, world.library)
        assert plan.certificate is None
        served += [s.fraction for s in plan.services]
        assert plan.price_usd_h == pytest.approx(sum((m.kept + m.new) * m.price_usd_h for m in plan.machines))
    assert sum(served) / len(served) > 0.6


def test_scarce_machines_are_shared() -> None:
    library = TableLibrary({"a": {"small": 1.0}, "b": {"small": 1.0}})
    plan = greedy_plan(view([spec("a", 4.0), spec("b", 4.0)], [offer("small", 1.0, 4)]), library)
    assert [s.fraction for s in plan.services] == [0.5, 0.5]
    assert any("do not suffice" in note for note in plan.notes)
