from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.errors import SolverError
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.tables import TableLibrary, held, offer, spec, template, view
from coral.testing.worlds import World, model, random_world
from coral.types.hardware import Domain
from coral.types.plan import Plan, RunningInstance
from coral.types.program import Floats, Program, Solution

HARD = PlanOptions(target_utilization=1.0, slices=False, couple_phases=False, gap=0.0)


def planned(world: World, solver: Solver) -> Plan:
    return build(CoralOptions()).plan(world.view, world.library, solver)


def fractions(plan: Plan) -> dict[str, float]:
    """The served fraction of a model is that of its worst phase."""
    return {
        one.model: min(s.fraction for s in plan.services if s.model == one.model) for one in plan.services
    }


def best_by_enumeration(world: World) -> tuple[list[float], float]:
    """Every allocation of single-GPU machines in one domain: the leximin of v, then the least cost."""
    view, library = world.view, world.library
    columns = [(key, one) for key, some in library.templates.items() for one in some]
    limits = {o.machine_type.gpu: o for o in view.offers}
    least = min(m.priority for m in view.models)
    best: tuple[list[float], float] | None = None
    for counts in product(range(4), repeat=len(columns)):
        used: dict[str, int] = {}
        for (_, one), n in zip(columns, counts, strict=True):
            for kind, k in one.nodes.items():
                used[kind.gpu] = used.get(kind.gpu, 0) + n * k
        if any(n > limits[gpu].obtainable for gpu, n in used.items()):
            continue
        cost = sum(n * limits[gpu].price_usd_h for gpu, n in used.items())
        ordered = []
        for one_model in view.models:
            rates = [
                sum(
                    n * one.throughput
                    for (key, one), n in zip(columns, counts, strict=True)
                    if key == (one_model.name, phase)
                )
                for phase in one_model.phases
            ]
            needs = [
                one_model.demand.requests_per_s * {"prefill": 100, "decode": 50}[p] for p in one_model.phases
            ]
            served = min(1.0, *(r / n for r, n in zip(rates, needs, strict=True)))
            ordered.append(round(served * least / one_model.priority, 6))
        found = (sorted(ordered), cost)
        if best is None or (found[0], -found[1]) > (best[0], -best[1]):
            best = found
    assert best is not None
    return best


@pytest.mark.parametrize("seed", range(8))
def test_leximin_then_cost_equals_enumeration(highs: Solver, seed: int) -> None:
    world = random_world(seed, HARD, sizes=(1,), machine_sizes=(1,), domains=1, most=3, scarce=2.0, models=2)
    templates = {key: some[:2] for key, some in world.library.templates.items()}
    library = type(world.library)(one for some in templates.values() for one in some)
    specs = tuple(replace(m, priority=1.0 + (seed % 2) * i) for i, m in enumerate(world.view.models))
    world = World(view=replace(world.view, models=specs), library=library)
    ordered, cost = best_by_enumeration(world)
    plan = planned(world, highs)
    served = fractions(plan)
    least = min(m.priority for m in specs)
    assert sorted(served[m.name] * least / m.priority for m in specs) == pytest.approx(ordered, abs=1e-5)
    assert plan.price_usd_h == pytest.approx(cost, abs=1e-6)


def test_a_model_that_nothing_can_host_zeroes_nobody(highs: Solver) -> None:
    library = TableLibrary({"a": {"small": 1.0}, "b": {"rare": 1.0}})
    world = view([spec("a", 2.0), spec("b", 1.0)], [offer("small", 1.0, 5), offer("rare", 9.0, 0)])
    plan = build(CoralOptions()).plan(world, library, highs)
    assert fractions(plan) == {"a": 1.0, "b": 0.0}
    assert plan.price_usd_h == pytest.approx(2.0)
    assert any("b mixed: 0 of 1" in note and "1× rare x1" in note for note in plan.notes)
    assert any("1 more rare.1" in note for note in plan.notes)


def test_a_model_without_a_template_is_told_apart(highs: Solver) -> None:
    library = TableLibrary({"a": {"small": 1.0}, "b": {"small": 0.0}})
    world = view([spec("a", 2.0), spec("b", 1.0)], [offer("small", 1.0, 5)])
    plan = build(CoralOptions()).plan(world, library, highs)
    assert fractions(plan) == {"a": 1.0, "b": 0.0}
    assert any("no template" in note and "small x1" in note for note in plan.notes)


def test_priority_weighs_the_fractions(highs: Solver) -> None:
    library = TableLibrary({"a": {"small": 1.0}, "b": {"small": 1.0}})
    low, high = spec("a", 6.0), replace(spec("b", 6.0), priority=2.0)
    plan = build(CoralOptions()).plan(view([low, high], [offer("small", 1.0, 6)]), library, highs)
    assert fractions(plan) == pytest.approx({"a": 1 / 3, "b": 2 / 3})


def test_nothing_to_be_had_tears_nothing_down(highs: Solver) -> None:
    """The cloud says 0 more can be had: what is held stays, and what runs is kept."""
    library = TableLibrary({"a": {"small": 1.0}})
    home = held("m1", "small", 1.0).domain
    running = tuple(
        RunningInstance(id=f"i{i}", template=template("a", "small", 1.0), domain=home) for i in range(2)
    )
    machines = (held("m1", "small", 1.0), held("m2", "small", 1.0))
    for slices in (False, True):
        world = view([spec("a", 2.0)], [offer("small", 1.0, 0)], machines, running)
        world = replace(world, options=replace(world.options, slices=slices))
        plan = build(CoralOptions()).plan(world, library, highs)
        assert plan.satisfied
        assert [(m.kept, m.new) for m in plan.machines] == [(2, 0)]
        assert [(one.count, one.kept) for one in plan.instances] == [(2, 2)]


def test_coupled_phases_are_served_where_both_fit(highs: Solver) -> None:
    """Prefill machines in one domain and decode machines in another serve nobody together."""
    from coral.testing.worlds import MemoryLibrary, pipeline
    from coral.types.hardware import MachineType, NodeType, Offer

    library = MemoryLibrary(
        [
            pipeline("m", "prefill", [NodeType("a", 1)], 100.0),
            pipeline("m", "decode", [NodeType("b", 1)], 50.0),
        ]
    )
    offers = tuple(
        Offer(
            machine_type=MachineType(name=f"{gpu}.1", gpu=gpu, gpus=1),
            domain=Domain(cloud="c", region=region),
            price_usd_h=1.0,
            obtainable=count,
        )
        for gpu, region, count in [("a", "r0", 3), ("b", "r0", 1), ("b", "r1", 5)]
    )
    for coupled, served in ((True, 1 / 3), (False, 1.0)):
        options = replace(HARD, couple_phases=coupled)
        world = World(view=replace(view([model("m", 3.0)], offers), options=options), library=library)
        plan = planned(world, highs)
        assert fractions(plan)["m"] == pytest.approx(served)
        assert plan.satisfied != coupled


@pytest.mark.parametrize("requests_per_s", [1e6, 1e10, 1e12, 1e100])
def test_a_vast_demand_is_served_with_all_there_is(highs: Solver, requests_per_s: float) -> None:
    library = TableLibrary({"a": {"small": 3.0}, "b": {"small": 2.0}})
    world = view([spec("a", requests_per_s)], [offer("small", 1.0, 7)])
    alone = build(CoralOptions()).plan(world, library, highs)
    assert [one.served for one in alone.services] == [pytest.approx(21.0)]
    two = replace(world, models=(spec("a", requests_per_s), spec("b", requests_per_s)))
    both = build(CoralOptions()).plan(two, library, highs)
    assert sorted(one.served for one in both.services) == pytest.approx([8.0, 9.0])


def test_a_vast_demand_takes_nothing_from_a_small_one_and_all_that_is_left(highs: Solver) -> None:
    library = TableLibrary({"a": {"small": 1.0, "large": 5.0}, "b": {"small": 1.0}})
    world = view([spec("a", 1e11), spec("b", 2.0)], [offer("small", 1.0, 3), offer("large", 9.0, 2)])
    plan = build(CoralOptions()).plan(world, library, highs)
    served = {one.model: one.served for one in plan.services}
    assert served["a"] + served["b"] == pytest.approx(13.0)
    assert served["a"] >= 11.0


@pytest.mark.parametrize("solves", [2, 3])
def test_what_an_earlier_step_found_outlives_a_solver_that_dies(highs: Solver, solves: int) -> None:
    """The first solve says that not all can be served; of the later ones only some are answered."""

    class Dying:
        features = highs.features
        asked = 0

        def solve(
            self,
            program: Program,
            *,
            work_limit: int | None,
            time_limit_s: float | None,
            gap: float,
            start: Floats | None = None,
        ) -> Solution:
            self.asked += 1
            if self.asked > solves:
                raise SolverError("was killed")
            return highs.solve(
                program, work_limit=work_limit, time_limit_s=time_limit_s, gap=gap, start=start
            )

    library = TableLibrary({"a": {"small": 1.0}, "b": {"small": 1.0}})
    world = view([spec("a", 6.0), spec("b", 6.0)], [offer("small", 1.0, 6)])
    plan = build(CoralOptions()).plan(world, library, Dying())
    assert fractions(plan) == pytest.approx({"a": 0.5, "b": 0.5})
    assert any("the solver failed in the end: was killed" in note for note in plan.notes)
    assert not any("greedily" in note for note in plan.notes)
