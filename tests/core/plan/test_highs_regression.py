"""An instance on which HiGHS 1.16, given a start, claimed a bound far below the cost of its own answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coral_solver_highs.solver import HighsSolver

from benchmarks.data import data_folder
from coral.core.plan.budget import Budget
from coral.core.plan.check import solve_checked
from coral.types.program import Program

INSTANCE = data_folder().parent / "spikes" / "solver" / "hbug.mps.gz"


def read(path: Path) -> Program:
    import highspy

    constructor: Any = highspy.Highs  # highspy is annotated in part
    highs = constructor()
    highs.setOptionValue("output_flag", False)
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    lp = highs.getLp()
    matrix = lp.a_matrix_
    assert matrix.format_ == highspy.MatrixFormat.kColwise
    return Program(
        cost=np.array(lp.col_cost_),
        indptr=np.array(matrix.start_, dtype=np.int64),
        indices=np.array(matrix.index_, dtype=np.int64),
        data=np.array(matrix.value_),
        row_lower=np.where(np.array(lp.row_lower_) <= -1e29, -np.inf, lp.row_lower_),
        row_upper=np.where(np.array(lp.row_upper_) >= 1e29, np.inf, lp.row_upper_),
        lower=np.array(lp.col_lower_),
        upper=np.where(np.array(lp.col_upper_) >= 1e29, np.inf, lp.col_upper_),
        integer=np.array([kind == highspy.HighsVarType.kInteger for kind in lp.integrality_]),
    )


@pytest.mark.skipif(not INSTANCE.is_file(), reason=f"{INSTANCE} is not on this machine")
def test_cost_and_bound_hold_whatever_the_solver_says(highs: HighsSolver) -> None:
    program = read(INSTANCE)
    first = solve_checked(program, highs, Budget(gap=0.2, time_limit_s=20.0))
    assert first.x is not None
    found = solve_checked(program, highs, Budget(gap=1e-2, time_limit_s=20.0), first.x)
    assert found.x is not None
    assert program.violation(found.x) <= 1e-6
    assert found.cost == pytest.approx(float(program.cost @ found.x))
    assert found.bound <= found.cost <= first.cost + 1e-6
