"""The contract of planners, on worlds small enough to check by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

import pytest

from coral.errors import SolverError
from coral.hookspecs.planner import Planner, View
from coral.hookspecs.solver import Solver
from coral.testing.contract import Contract
from coral.testing.tables import AWAY, HOME, TableLibrary, held, offer, spec, template, view
from coral.types.hardware import Domain
from coral.types.plan import Plan, RunningInstance
from coral.types.program import SolverFeatures

LIBRARY = TableLibrary({"a": {"small": 1.0, "big": 5.0}, "b": {"small": 2.0}})
SMALL, BIG = offer("small", 1.0), offer("big", 3.0)
CLOSE = 1e-6


class PlannerContract(Contract):
    """Needs the fixture `planner`, and `solver` where the planner uses one.

    `optimal`: whether it finds the best plan; a heuristic says False and is held to valid plans only.
    """

    optimal = True

    @pytest.fixture
    def planner(self) -> Planner:
        self._undefined("planner")

    @pytest.fixture
    def solver(self) -> Solver:
        return NoSolver()

    def check_valid(self, plan: Plan, world: View) -> None:
        """Nothing is rented that is not offered, nothing runs that does not fit, and the sums are right."""
        limits = {(o.machine_type.name, o.domain, o.market): o for o in world.offers}
        gpus: Counter[tuple[Domain, str]] = Counter()
        for some in plan.machines:
            found = limits.get((some.machine_type, some.domain, some.market))
            kept = [
                m
                for m in world.machines
                if m.machine_type.name == some.machine_type and m.domain == some.domain
            ]
            assert some.kept <= len(kept)
            assert some.new <= (found.obtainable if found else 0)
            kind = found.machine_type if found else kept[0].machine_type
            gpus[some.domain, kind.gpu] += (some.kept + some.new) * kind.gpus
        used: Counter[tuple[Domain, str]] = Counter()
        capacity: Counter[str] = Counter()
        for some_of in plan.instances:
            assert some_of.count >= 1
            assert some_of.kept <= some_of.count
            for node, count in some_of.template.nodes.items():
                used[some_of.domain, node.gpu] += node.count * count * some_of.count
            capacity[some_of.template.model] += some_of.count * some_of.template.throughput  # type: ignore[assignment]
        assert all(used[key] <= gpus[key] for key in used), (used, gpus)
        price = sum((m.kept + m.new) * m.price_usd_h for m in plan.machines)
        assert plan.price_usd_h == pytest.approx(price)
        by_model = {service.model: service for service in plan.services}
        assert set(by_model) == {model.name for model in world.models}
        for model in world.models:
            service = by_model[model.name]
            assert service.demand == pytest.approx(model.demand.requests_per_s)
            assert service.capacity == pytest.approx(capacity[model.name])
            assert service.served <= min(service.demand, service.capacity) + CLOSE
        if plan.certificate is not None:
            assert plan.certificate.bound_usd_h <= plan.certificate.cost_usd_h + CLOSE

    def planned(self, planner: Planner, solver: Solver, world: View, best: float | None = None) -> Plan:
        plan = planner.plan(world, LIBRARY, solver)
        self.check_valid(plan, world)
        if best is not None and self.optimal:
            assert plan.price_usd_h == pytest.approx(best)
        return plan

    @pytest.mark.parametrize(("demand", "best"), [(1.0, 1.0), (2.0, 2.0), (3.5, 3.0), (5.0, 3.0), (5.5, 4.0)])
    def test_the_cheapest_machines(
        self, planner: Planner, solver: Solver, demand: float, best: float
    ) -> None:
        plan = self.planned(planner, solver, view([spec("a", demand)], [SMALL, BIG]), best)
        assert plan.satisfied

    def test_no_demand_needs_no_machines(self, planner: Planner, solver: Solver) -> None:
        plan = self.planned(planner, solver, view([spec("a", 0.0)], [SMALL, BIG]), 0.0)
        assert plan.satisfied
        assert plan.instances == ()

    def test_what_cannot_be_had_is_not_planned(self, planner: Planner, solver: Solver) -> None:
        plan = self.planned(planner, solver, view([spec("a", 4.0)], [SMALL, offer("big", 3.0, 0)]), 4.0)
        assert plan.satisfied

    def test_scarcity_is_said(self, planner: Planner, solver: Solver) -> None:
        world = view([spec("a", 4.0)], [offer("small", 1.0, 1), offer("big", 3.0, 0)])
        plan = self.planned(planner, solver, world)
        assert not plan.satisfied
        (service,) = plan.services
        assert service.served == pytest.approx(1.0)

    def test_nothing_to_be_had(self, planner: Planner, solver: Solver) -> None:
        plan = self.planned(planner, solver, view([spec("a", 1.0)], [offer("small", 1.0, 0)]), 0.0)
        assert not plan.satisfied
        assert plan.instances == ()

    def test_the_cheaper_region(self, planner: Planner, solver: Solver) -> None:
        world = view([spec("a", 2.0)], [offer("small", 1.0, domain=HOME), offer("small", 0.7, domain=AWAY)])
        plan = self.planned(planner, solver, world, 1.4)
        assert plan.satisfied

    def test_machines_that_cost_nothing(self, planner: Planner, solver: Solver) -> None:
        world = view([spec("a", 3.0)], [offer("small", 0.0, 2), BIG])
        assert self.planned(planner, solver, world, 3.0).satisfied
        assert self.planned(
            planner, solver, view([spec("a", 2.0)], [offer("small", 0.0, 2), BIG]), 0.0
        ).satisfied

    def test_models_share_what_is_offered(self, planner: Planner, solver: Solver) -> None:
        world = view([spec("a", 1.0), spec("b", 2.0)], [offer("small", 1.0, 2), offer("big", 3.0, 1)])
        assert self.planned(planner, solver, world, 2.0).satisfied

    def test_what_runs_is_kept(self, planner: Planner, solver: Solver) -> None:
        running = RunningInstance(id="x", template=template("a", "small", 1.0), domain=HOME)
        world = view(
            [spec("a", 1.0, initialization_s=600.0)],
            [SMALL, offer("small", 1.0, domain=AWAY)],
            [held("m1", "small", 1.0)],
            [running],
        )
        plan = self.planned(planner, solver, world, 1.0)
        assert plan.satisfied
        if self.optimal:
            assert [(m.domain, m.kept, m.new) for m in plan.machines if m.kept + m.new] == [(HOME, 1, 0)]
            assert plan.initialization_usd_h == pytest.approx(0.0)

    def test_the_same_view_gives_the_same_plan(self, planner: Planner, solver: Solver) -> None:
        world = view([spec("a", 6.0), spec("b", 3.0)], [SMALL, BIG])
        first, again = (planner.plan(world, LIBRARY, solver) for _ in range(2))
        assert (first.machines, first.instances, first.services) == (
            again.machines,
            again.instances,
            again.services,
        )


class NoSolver:
    """Stands where a planner that needs none is given one."""

    @property
    def features(self) -> SolverFeatures:
        return SolverFeatures(integer=False, duals=False, start=False, deterministic_work_limit=False)

    def solve(self, program: Any, **limits: Any) -> NoReturn:
        raise SolverError("this planner uses a solver", mend="define the fixture `solver` of the suite")
