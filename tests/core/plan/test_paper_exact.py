"""The paper's form: ours with all reductions against the full program, on solvers that share no code."""

from __future__ import annotations

import os

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.optimize import linprog

from coral.core.plan.paper import paper_form
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.core.plan.problem import Problem, state
from coral.hookspecs.planner import PlanOptions
from coral.hookspecs.solver import Solver
from coral.testing.worlds import World, random_world
from coral.types.program import Program
from tests.core.plan.scip import least_by_scip

INSTANCES = 6 * int(os.environ.get("CORAL_CAMPAIGN", "1"))
PAPER = PlanOptions(target_utilization=1.0, slices=False, couple_phases=False, gap=0.0, time_limit_s=120.0)
SHARES = (0.1, 0.5, 0.8)
"""K: initialization over the span it is charged over."""


def instance(seed: int) -> tuple[World, Problem]:
    """Two models on nodes of 1 to 4 GPUs in two domains, some of it running; every other instance is
    scarce: 1.25 of its demand could be served by the LP, 6 times its demand in the rest."""
    world = random_world(
        seed,
        PAPER,
        models=2,
        sizes=(1, 2, 4),
        machine_sizes=(1, 2, 4),
        most=5,
        running=6 if seed % 3 else 0,
        initialization_s=3600.0 * SHARES[seed % len(SHARES)],
    )
    problem = state(world.view, world.library, reduce=False)
    scale = multiple(problem) / (1.25 if seed % 2 else 6.0)
    models = tuple(
        replace(one, demand=replace(one.demand, requests_per_s=one.demand.requests_per_s * scale))
        for one in world.view.models
    )
    world = World(view=replace(world.view, models=models), library=world.library)
    return world, state(world.view, world.library, reduce=False)


def multiple(problem: Problem) -> float:
    """The largest multiple of the demand that fractions of instances could serve."""
    columns = problem.columns
    new = np.flatnonzero(columns.kept < 0)
    rows, limits = [], []
    for index, site in enumerate(problem.sites):
        for at, kind in enumerate(problem.node_types):
            machines = sum(lot.limit for lot in site.lots if (lot.gpu, lot.gpus) == (kind.gpu, kind.count))
            takes = np.where(columns.domain[new] == index, columns.usage[new, at], 0)
            rows.append(np.r_[takes, 0.0])
            limits.append(float(machines))
    for service, need in enumerate(problem.needs):
        able = np.where(columns.service[new] == service, columns.throughput[new], 0.0)
        rows.append(np.r_[-able, need.demand])
        limits.append(0.0)
    result = linprog(np.r_[np.zeros(len(new)), -1.0], A_ub=np.array(rows), b_ub=np.array(limits))
    assert result.status == 0
    return float(-result.fun)


def least_by_cbc(program: Program) -> float | None:
    plugin = pytest.importorskip("coral_solver_mip", reason="the mip plugin is not installed")
    assert plugin is not None
    from coral_solver_mip.options import MipOptions
    from coral_solver_mip.solver import build as build_cbc

    found = build_cbc(MipOptions()).solve(program, work_limit=None, time_limit_s=120.0, gap=0.0)
    assert found.status in ("optimal", "infeasible"), found.termination
    return found.objective if found.status == "optimal" else None


def least_by_highs(program: Program, highs: Solver) -> float | None:
    found = highs.solve(program, work_limit=None, time_limit_s=120.0, gap=0.0)
    assert found.status in ("optimal", "infeasible"), found.termination
    return found.objective if found.status == "optimal" else None


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_ours_agrees_with_the_full_program(highs: Solver, seed: int) -> None:
    world, problem = instance(seed)
    program = paper_form(problem).program
    best = least_by_highs(program, highs)
    assert least_by_cbc(program) == (best if best is None else pytest.approx(best, rel=1e-6, abs=1e-6))
    assert least_by_scip(program) == (best if best is None else pytest.approx(best, rel=1e-6, abs=1e-6))
    for above in (0, 1_000_000):
        plan = build(CoralOptions(sift_above=above)).plan(world.view, world.library, highs)
        assert plan.satisfied == (best is not None)
        if best is not None:
            assert plan.certificate is not None
            assert plan.certificate.cost_usd_h == pytest.approx(best, rel=1e-6, abs=1e-6)
            assert plan.certificate.bound_usd_h <= best + 1e-6 * max(1.0, best)


def test_instances_are_of_all_kinds() -> None:
    worlds = [instance(seed)[0] for seed in range(6)]
    assert any(world.view.running for world in worlds)
    assert all(world.view.models[0].initialization_s > 0 for world in worlds)
