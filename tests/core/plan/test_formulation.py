"""What follows from ν and N is worked out; what runs is a start; rows say what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.budget import Budget
from coral.core.plan.check import FEASIBILITY, solve_checked
from coral.core.plan.formulation import Formulation, formulate
from coral.core.plan.problem import state
from coral.core.plan.start import start_from_running
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.solver import Solver
from coral.testing.worlds import MemoryLibrary, model, pipeline
from coral.types.hardware import Domain, Machine, MachineType, Node, NodeType
from coral.types.plan import RunningInstance
from tests.core.plan.asked import Asked, asked_world

ALL: tuple[Asked, ...] = ("spot", "preemption", "share", "zone", "machine", "gpus", "cost", "budget")


def following(formulation: Formulation) -> list[int]:
    """The columns that are neither ν nor N nor blocks of held machines."""
    found = [int(column) for column in formulation.fraction if column >= 0]
    found += [cell.column for cell in formulation.cells]
    found += [promise.column for promise in formulation.promises]
    for one in formulation.endured:
        found.append(one.column)
        for rest in one.rests:
            found += [rest.capacity, *(column for way in rest.ways for column in (way.y, way.z))]
    return found


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("asked", [(), ("zone", "spot", "share"), ("machine",), ALL], ids="-".join)
def test_what_follows_from_instances_and_machines(
    highs: Solver, asked: tuple[Asked, ...], coupled: bool, soft: bool
) -> None:
    """Of a solution all else is forgotten and worked out again: it holds, and serves no less."""
    solved = 0
    for seed in range(3):
        world = asked_world(seed, asked, slices=seed % 2 == 0, coupled=coupled, models=1, choose=seed == 1)
        formulation = formulate(state(world.view, world.library), soft=soft)
        program = formulation.builder.build()
        served = formulation.fraction[formulation.fraction >= 0]
        if soft:
            cost = np.zeros(program.columns)
            cost[served] = -1.0
            program = replace(program, cost=cost)
        found = solve_checked(program, highs, Budget(gap=1e-3, time_limit_s=30.0))
        if found.x is None:
            continue
        solved += 1
        forgotten = found.x.copy()
        forgotten[following(formulation)] = 0.0
        again = formulation.settled(forgotten)
        assert program.violation(again) <= FEASIBILITY
        assert (again[served] >= found.x[served] - FEASIBILITY).all()
    assert solved or not soft


def test_what_runs_is_a_start_where_a_machine_can_be_used_in_two_ways() -> None:
    """A held machine of three GPUs takes nodes of one or two, or one of three: it is counted in one way."""
    place = Domain(cloud="c", region="r")
    library = MemoryLibrary(
        [pipeline("m", "mixed", [NodeType("a", size)], float(size)) for size in (1, 2, 3)]
    )
    kind = MachineType(name="a.3", gpu="a", gpus=3)
    machines = tuple(Machine(id=f"h{i}", machine_type=kind, domain=place, price_usd_h=1.0) for i in range(2))
    (one, *_) = library.templates["m", "mixed"]
    node = Node(machine_id="h0", node_type=NodeType("a", 1), devices=(0,))
    running = RunningInstance(id="x", template=one, domain=place, nodes=(node,))
    view = View(
        models=(model("m", 0.5, ("mixed",)),),
        offers=(),
        machines=machines,
        running=(running,),
        options=PlanOptions(slices=True),
    )
    problem = state(view, library)
    formulation = formulate(problem)
    (site,) = problem.sites
    assert {use.sliced for use in site.hosting.uses if use.lot == 0} == {True, False}
    start = start_from_running(problem, formulation, formulation.builder.build())
    assert start is not None
    assert start[formulation.nu].sum() == 1
    assert sum(start[variable.column] for variable in formulation.machines) == 2


@pytest.mark.parametrize("coupled", [False, True])
def test_every_row_says_what_it_is_for(coupled: bool) -> None:
    world = asked_world(1, ALL, slices=True, coupled=coupled, choose=True)
    formulation = formulate(state(world.view, world.library))
    program = formulation.builder.build()
    at = 0
    for group in formulation.rows:
        assert group.start == at
        at = group.stop
    assert at == program.rows
    kinds = {group.kind for group in formulation.rows}
    assert kinds >= {"hosting", "demand", "zone", "machine", "spot", "cost", "gpus", "budget"}
    for group in formulation.rows:
        if group.kind == "hosting":
            assert group.count == len(formulation.problem.sites[group.site].hosting.sizes)
        if group.kind == "demand":
            assert formulation.problem.needs[group.service].model == group.model
