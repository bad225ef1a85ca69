from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from coral.testing.programs import best_by_enumeration, dense, random_covering


def test_a_dense_program_is_what_was_written() -> None:
    program = dense([1, 2], [[0, 3], [4, 5]], at_least=[1, 2], upper=[6, 7], integer=[True, False])
    assert program.activity(np.array([1.0, 2.0])).tolist() == [6.0, 14.0]
    assert program.indptr.tolist() == [0, 1, 3]


@pytest.mark.parametrize("seed", range(5))
def test_enumeration_agrees_with_a_solver(seed: int) -> None:
    program = random_covering(seed)
    matrix = csc_array((program.data, program.indices, program.indptr), shape=(program.rows, program.columns))
    result = milp(
        program.cost,
        integrality=program.integer.astype(int),
        bounds=Bounds(program.lower, program.upper),
        constraints=[LinearConstraint(matrix, program.row_lower, program.row_upper)],
    )
    assert result.fun == pytest.approx(best_by_enumeration(program))


def test_enumeration_knows_the_infeasible() -> None:
    program = dense([1.0], [[2.0]], at_least=[3.0], at_most=[3.0], upper=[5.0], integer=True)
    assert best_by_enumeration(program) == float("inf")
