"""Demands and answers at the edges: next to nothing, far too much, not quite all, no proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.check import Checked
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.core.plan.sifted import Sifted, better
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.worlds import MemoryLibrary, model, pipeline
from coral.types.hardware import Domain, MachineType, NodeType, Offer
from coral.types.plan import Plan, Service
from coral.types.program import Floats, Program, Solution

HOME = Domain(cloud="c", region="r")
ONE = NodeType("a", 1)


def planned(requests_per_s: float, solver: Solver, *, obtainable: int = 4) -> Plan:
    library = MemoryLibrary([pipeline("m", "mixed", [ONE], 10.0)])
    offers = tuple(
        Offer(
            machine_type=MachineType(name=f"a.{gpus}", gpu="a", gpus=gpus),
            domain=HOME,
            price_usd_h=float(gpus),
            obtainable=obtainable,
        )
        for gpus in (1, 4)
    )
    view = View(
        models=(model("m", requests_per_s, ("mixed",)),),
        offers=offers,
        options=PlanOptions(target_utilization=1.0, time_limit_s=5.0),
    )
    return build(CoralOptions()).plan(view, library, solver)


@pytest.mark.parametrize("requests_per_s", [1e-300, 1e-12, 1e-6])
def test_a_demand_of_next_to_nothing_takes_an_instance(highs: Solver, requests_per_s: float) -> None:
    found = planned(requests_per_s, highs)
    assert found.satisfied
    assert [one.count for one in found.instances] == [1]


def test_what_a_vast_demand_would_take_is_told_in_time(highs: Solver) -> None:
    started = time.process_time()
    found = planned(200_000.0, highs)
    assert time.process_time() - started < 10
    assert not found.satisfied
    assert "all of it could be served for 20000 USD/h" in found.notes[-1]


@pytest.mark.parametrize(("served", "met"), [(1.0, True), (1 - 2e-6, True), (1 - 1e-4, False), (0.0, False)])
def test_a_solvers_tolerance_is_no_shortage(served: float, met: bool) -> None:
    one = Service(model="m", phase="mixed", demand=7.0, served=7.0 * served, capacity=7.0)
    assert one.met is met


def test_of_two_answers_the_cheaper_with_the_higher_bound() -> None:
    x = np.zeros(1)
    first = Sifted(answer=Checked(status="feasible", x=x, cost=10.0, bound=9.0), columns=3, whose="ours")
    second = Sifted(answer=Checked(status="feasible", x=x, cost=9.5, bound=8.0), columns=5, whose="solver")
    for found in (better(first, second), better(second, first)):
        assert (found.answer.cost, found.answer.bound, found.whose) == (9.5, 9.0, "ours")
    nothing = Sifted(answer=Checked(status="no_solution"), columns=5, whose="solver")
    assert (better(first, nothing).answer.cost, better(first, nothing).answer.bound) == (10.0, 9.0)


def test_a_plan_without_a_proof_states_a_bound_of_0(highs: Solver) -> None:
    """Prices are not negative, so that 0 is a bound, and one that JSON can hold."""

    class Unproven:
        features = highs.features

        def solve(
            self,
            program: Program,
            *,
            work_limit: int | None,
            time_limit_s: float | None,
            gap: float,
            start: Floats | None = None,
        ) -> Solution:
            found = highs.solve(program, work_limit=work_limit, time_limit_s=time_limit_s, gap=gap)
            return replace(found, status="feasible", bound=-math.inf)

    certificate = planned(5.0, Unproven()).certificate
    assert certificate is not None
    assert (certificate.bound_usd_h, certificate.gap) == (0.0, 1.0)


def test_a_poor_answer_in_scarcity_gives_way_to_counting(highs: Solver) -> None:
    """A solver whose limits end its search at once may know of nothing better than to serve nobody."""

    class Hasty:
        features = highs.features

        def solve(
            self,
            program: Program,
            *,
            work_limit: int | None,
            time_limit_s: float | None,
            gap: float,
            start: Floats | None = None,
        ) -> Solution:
            x = np.zeros(program.columns)
            if program.violation(x) > 0:
                return Solution(status="no_solution", termination="time limit")
            return Solution(status="feasible", termination="time limit", x=x, objective=0.0)

    found = planned(1000.0, Hasty())
    assert [one.served for one in found.services] == [pytest.approx(200.0)]
    assert any("chosen greedily" in note for note in found.notes)
    assert planned(1000.0, highs).services == found.services


@pytest.mark.parametrize("sift_above", [0, 10**9])
@pytest.mark.parametrize(
    "lie",
    [
        lambda found: replace(found, row_duals=np.zeros(0)),
        lambda found: replace(found, x=None if found.x is None else found.x[:, None]),
        lambda found: replace(found, seconds=math.nan, work=-7),
    ],
    ids=["no price per row", "a matrix", "no time"],
)
def test_answers_of_a_wrong_shape_end_no_plan(
    highs: Solver, lie: Callable[[Solution], Solution], sift_above: int
) -> None:
    class Lying:
        features = highs.features

        def solve(self, program: Program, **limits: Any) -> Solution:
            return lie(highs.solve(program, **limits))

    library = MemoryLibrary([pipeline("m", "mixed", [ONE], 10.0)])
    machines = MachineType(name="a.1", gpu="a", gpus=1)
    offers = (Offer(machine_type=machines, domain=HOME, price_usd_h=1.0, obtainable=4),)
    world = View(models=(model("m", 15.0, ("mixed",)),), offers=offers, options=PlanOptions(time_limit_s=5.0))
    found = build(CoralOptions(sift_above=sift_above)).plan(world, library, Lying())
    assert found.satisfied
    assert found.price_usd_h == 2.0
    assert found.certificate is None or math.isfinite(found.certificate.seconds)
