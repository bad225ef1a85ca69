"""Stages that share the SLO freely: against enumeration, against an integer program, and in a library."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coral.core.generate.budgets import budget_tables
from coral.core.generate.build import GenerateOptions
from coral.core.generate.hardware import Hardware
from coral.core.generate.search import Search, search
from coral.core.profile.throughput import ROLES
from coral.hookspecs.planner import TemplateTable
from coral.hookspecs.program_builder import ProgramBuilder
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program
from tests.core.generate import library_case as case
from tests.core.generate.placement_case import (
    best_of_subsets,
    brute_force,
    random_budget_rates,
    random_rates,
)

INSTANCES = int(os.environ.get("CORAL_BUDGET_INSTANCES", "240"))
PARTS = 4
CASES_PER_TABLE = 4
PROGRAMS = int(os.environ.get("CORAL_BUDGET_PROGRAMS", "12"))


@pytest.mark.parametrize("seed", range(PARTS))
def test_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    done = better = 0
    while done < INSTANCES // PARTS:
        layers, types = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        nodes = int(rng.choice([1, 2, 3, 4], p=[0.05, 0.35, 0.4, 0.2]))
        rate = random_rates(rng, int(rng.integers(1, nodes + 1)), layers, types)
        free = random_budget_rates(rng, int(rng.integers(max(nodes, 2), 7)), layers, types)
        task = Search(
            rate=rate, memory_bytes=np.ones(types), memory_limit=float(nodes), max_nodes=nodes, free=free
        )
        found = search(task)
        for _ in range(CASES_PER_TABLE):
            members = tuple(sorted(rng.integers(0, types, nodes).tolist()))
            expected = brute_force(rate, members, free)
            answer = best_of_subsets(found, members)
            assert answer == pytest.approx(expected, rel=1e-9, abs=1e-12), (seed, done, members)
            better += expected > brute_force(rate, members) * 1.001
            done += 1
    assert better > done / 10, "free budgets must matter in what is compared"


@pytest.fixture(scope="module")
def solver() -> Solver:
    highs = pytest.importorskip("coral_solver_highs.solver", reason="coral-solver-highs is not installed")
    options = pytest.importorskip("coral_solver_highs.options")
    built: Solver = highs.build(options.HighsOptions())
    return built


def budget_program(rates: list[Floats]) -> Program:
    """`rates[s][k-1, j-1, node]`: T̂ of each node in the role of stage s with k units and j layers.

    x_skj = 1 if stage s has k units and j layers, y_sn = 1 if node n is in stage s, z_skjn their product;
    maximise T subject to T ≤ Σ_kjn z_skjn T̂ for every stage s, Σ_kj x_skj = 1, Σ_s y_sn = 1,
    Σ_skj j x_skj = L, Σ_skj k x_skj ≤ K. Minimises -T.
    """
    stages, (most, layers, nodes) = len(rates), rates[0].shape
    program = ProgramBuilder()
    x = program.variables(stages * most * layers, upper=1.0, integer=True).reshape(stages, most, layers)
    y = program.variables(stages * nodes, upper=1.0, integer=True).reshape(stages, nodes)
    z = program.variables(x.size * nodes, upper=1.0).reshape(stages, most, layers, nodes)
    t = program.variables(1, cost=-1.0)
    one_size = program.rows(stages, lower=1.0, upper=1.0)
    program.entries(one_size[:, None, None], x, 1.0)
    one_stage = program.rows(nodes, lower=1.0, upper=1.0)
    program.entries(one_stage[None, :], y, 1.0)
    all_layers = program.rows(1, lower=layers, upper=layers)
    program.entries(all_layers, x, np.arange(1, layers + 1)[None, None, :])
    within_slo = program.rows(1, upper=most + 1)
    program.entries(within_slo, x, np.arange(1, most + 1)[None, :, None])
    for of in (x[:, :, :, None], y[:, None, None, :]):
        both = program.rows(z.size, upper=0.0).reshape(z.shape)
        program.entries(both, z, 1.0)
        program.entries(both, of, -1.0)
    enough = program.rows(stages, lower=0.0)
    program.entries(enough[:, None, None, None], z, np.array(rates))
    program.entries(enough, t, -1.0)
    return program.build()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_equals_an_integer_program(seed: int, solver: Solver) -> None:
    rng = np.random.default_rng(7000 + seed)
    layers, nodes = int(rng.integers(3, 7)), int(rng.integers(2, 4))
    stages, units = int(rng.integers(2, min(nodes, layers) + 1)), int(rng.integers(3, 6))
    free = random_budget_rates(rng, units, layers, nodes)
    rate = np.zeros((stages, 4, layers, nodes))  # nothing without free budgets, and S below `stages` less
    found = search(
        Search(rate=rate, memory_bytes=np.ones(nodes), memory_limit=float(nodes), max_nodes=nodes, free=free)
    )
    once = (found.usage <= 1).all(axis=1)
    ours = float(found.throughput[once].max(initial=0.0))
    best = 0.0
    for count in range(2, stages + 1):
        roles = [0, *[1] * (count - 2), 2]
        program = budget_program([free[:, role] for role in roles])
        solution = solver.solve(program, work_limit=None, time_limit_s=60.0, gap=0.0)
        assert solution.status == "optimal", solution.termination
        assert solution.x is not None
        assert program.violation(solution.x) < 1e-5
        best = max(best, float(-program.cost @ solution.x))
    assert ours == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_templates_keep_the_slo_over_all_their_stages(tmp_path: Path) -> None:
    """By the tables: the least units that each stage needs for the template's throughput are K in all."""
    units = 12
    model = case.model(phases=("decode",), decode_s=0.03)
    options = GenerateOptions(max_nodes=3, memory_ratio=1e6, stage_budgets="free", budget_units=units)
    uniform = case.build(tmp_path / "uniform", model, small_mib=70)
    library = case.build(tmp_path / "free", model, small_mib=70, options=options)
    hardware = Hardware(
        node_types=case.KINDS,
        gpus=case.gpus(70),
        costs=case.cost,
        capabilities=case.capabilities,
        hop=case.HOP,
    )
    (table,) = budget_tables(model, "decode", hardware, units, [model.slo])
    unequal = 0
    for row in range(library.entry("m", "decode").rows):
        template = library.template("m", "decode", row)
        stages = template.placement.stages
        assert stages[-1].end_layer == 12
        if len(stages) == 1:
            continue
        needed = []
        for number, stage in enumerate(stages):
            role = "first" if number == 0 else "last" if number == len(stages) - 1 else "mid"
            at = [case.KINDS.index(node.node_type) for node in stage.nodes]
            rates = table.rate[:, ROLES.index(role), stage.layers - 1][:, at].sum(axis=1)
            needed.append(int(np.argmax(rates >= template.throughput * (1 - 1e-9))) + 1)
            assert rates.max() >= template.throughput * (1 - 1e-9)
        assert sum(needed) <= units
        unequal += len(set(needed)) > 1
    assert unequal > 0
    before = dict(_by_usage(uniform.table("m", "decode")))
    after = dict(_by_usage(library.table("m", "decode")))
    assert all(after.get(usage, np.inf) >= value * (1 - 1e-12) for usage, value in before.items())
    assert any(after[usage] > before.get(usage, 0.0) * 1.01 for usage in after)


def _by_usage(table: TemplateTable) -> list[tuple[tuple[int, ...], float]]:
    return list(zip(map(tuple, table.usage.tolist()), table.throughput.tolist(), strict=True))
