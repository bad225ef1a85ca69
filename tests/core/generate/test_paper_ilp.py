"""The closed form against the paper's integer program (§4.1), through the solver plugin.

Per number of stages S: x_sj = 1 if stage s holds j layers, y_sk = 1 if node k is in stage s, z_sjk their
product; maximise T subject to T ≤ Σ_jk z_sjk T̂_j(k) for every stage s, Σ_j x_sj = 1, Σ_s y_sk = 1,
Σ_sj j x_sj = L.
"""

from __future__ import annotations

import numpy as np
import pytest

from coral.core.generate.search import Search, search
from coral.hookspecs.program_builder import ProgramBuilder
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Program

INSTANCES = 36


@pytest.fixture(scope="module")
def solver() -> Solver:
    highs = pytest.importorskip("coral_solver_highs.solver", reason="coral-solver-highs is not installed")
    options = pytest.importorskip("coral_solver_highs.options")
    built: Solver = highs.build(options.HighsOptions())
    return built


def paper_program(rates: list[Floats]) -> Program:
    """`rates[s][j-1, k]`: T̂ of node k with j layers in the role of stage s. Minimises -T."""
    stages, (layers, nodes) = len(rates), rates[0].shape
    program = ProgramBuilder()
    x = program.variables(stages * layers, upper=1.0, integer=True).reshape(stages, layers)
    y = program.variables(stages * nodes, upper=1.0, integer=True).reshape(stages, nodes)
    z = program.variables(stages * layers * nodes, upper=1.0).reshape(stages, layers, nodes)
    t = program.variables(1, cost=-1.0)
    one_size = program.rows(stages, lower=1.0, upper=1.0)
    program.entries(one_size[:, None], x, 1.0)
    one_stage = program.rows(nodes, lower=1.0, upper=1.0)
    program.entries(one_stage[None, :], y, 1.0)
    all_layers = program.rows(1, lower=layers, upper=layers)
    program.entries(all_layers, x, np.arange(1, layers + 1)[None, :])
    for of, size in ((x[:, :, None], z.shape), (y[:, None, :], z.shape)):
        both = program.rows(z.size, upper=0.0).reshape(size)
        program.entries(both, z, 1.0)
        program.entries(both, of, -1.0)
    enough = program.rows(stages, lower=0.0)
    program.entries(enough[:, None, None], z, np.array(rates))
    program.entries(enough, t, -1.0)
    return program.build()


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_equals_the_papers_program(seed: int, solver: Solver) -> None:
    rng = np.random.default_rng(1000 + seed)
    layers, nodes = int(rng.integers(3, 9)), int(rng.integers(2, 5))
    types = nodes
    stages = int(rng.integers(1, min(nodes, layers) + 1))
    rate = np.zeros((stages, 4, layers, types))
    drawn = -np.sort(-rng.uniform(0.2, 5, (4, layers, types)), axis=1)
    if seed % 3 == 0:
        drawn = np.round(drawn * 2)
    drawn[:, int(rng.integers(2, layers + 1)) :, 0] = 0.0  # the first node cannot hold many
    rate[stages - 1] = drawn
    found = search(Search(rate=rate, memory_bytes=np.ones(types), memory_limit=float(nodes), max_nodes=nodes))
    # Each node type once; smaller sets of nodes never do better than the whole.
    once = (found.usage <= 1).all(axis=1)
    ours = float(found.throughput[once].max(initial=0.0))

    roles = [3] if stages == 1 else [0, *[1] * (stages - 2), 2]
    program = paper_program([rate[stages - 1, role] for role in roles])
    solution = solver.solve(program, work_limit=None, time_limit_s=60.0, gap=0.0)
    assert solution.status == "optimal", solution.termination
    assert solution.x is not None
    assert program.violation(solution.x) < 1e-5
    assert float(-program.cost @ solution.x) == pytest.approx(ours, rel=1e-6, abs=1e-6)
