"""The instance for which HiGHS 1.16, given a start, stated a lower cost than its answer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coral.core.plan.budget import Budget
from coral.core.plan.check import solve_checked
from coral.core.plan.sifting import minimise
from coral.hookspecs.solver import Solver
from coral.types.program import Program

FILE = Path(__file__).parents[4] / "shared" / "spikes" / "solver" / "hbug.mps.gz"
LEAST, MOST = 486.3280, 486.3761
"""The optimum is between, by a solve from cold to a gap of 1e-4."""
GAP = 1e-3


@pytest.fixture(scope="module")
def program() -> Program:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not there")
    import highspy

    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.silent()
    assert model.readModel(str(FILE)) == highspy.HighsStatus.kOk
    lp = model.getLp()
    matrix = lp.a_matrix_
    assert matrix.format_ == highspy.MatrixFormat.kColwise
    return Program(
        cost=np.array(lp.col_cost_),
        indptr=np.array(matrix.start_, dtype=np.int64),
        indices=np.array(matrix.index_, dtype=np.int64),
        data=np.array(matrix.value_),
        row_lower=np.array(lp.row_lower_),
        row_upper=np.array(lp.row_upper_),
        lower=np.array(lp.col_lower_),
        upper=np.array(lp.col_upper_),
        integer=np.array([kind == highspy.HighsVarType.kInteger for kind in lp.integrality_]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("first", [0.3, 0.02])
def test_a_start_does_not_make_it_wrong(highs: Solver, program: Program, first: float) -> None:
    """Solved to a coarse gap, then from that answer to a fine one."""
    rough = solve_checked(program, highs, Budget(gap=first, time_limit_s=60.0))
    assert rough.x is not None
    found = solve_checked(program, highs, Budget(gap=GAP, time_limit_s=100.0), rough.x)
    assert found.x is not None
    assert program.violation(found.x) <= 1e-6
    assert found.cost == pytest.approx(float(program.cost @ found.x))
    assert LEAST * (1 - 1e-6) <= found.cost <= MOST * (1 + GAP)
    assert found.bound <= MOST


@pytest.mark.slow
def test_the_exact_engine_agrees(highs: Solver, program: Program) -> None:
    found = minimise(program, highs, Budget(gap=GAP, time_limit_s=100.0), sift_above=0).answer
    assert found.x is not None
    assert program.violation(found.x) <= 1e-6
    assert LEAST * (1 - 1e-6) <= float(program.cost @ found.x) <= MOST * (1 + GAP)
    assert LEAST * (1 - 2 * GAP) <= found.bound <= MOST
