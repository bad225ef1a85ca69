from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from coral_solver_mip.options import MipOptions
from coral_solver_mip.solver import MipSolver, build

from coral.errors import SolverError
from coral.testing.programs import dense, knapsack
from coral.testing.solver import SolverContract


class TestMip(SolverContract):
    @pytest.fixture
    def solver(self) -> MipSolver:
        return build(MipOptions())


def test_nothing_to_decide() -> None:
    solution = build(MipOptions()).solve(dense([]), work_limit=None, time_limit_s=None, gap=0.0)
    assert solution.status == "optimal"
    assert solution.x is not None
    assert solution.x.shape == (0,)


def test_a_start_is_taken_as_the_first_incumbent() -> None:
    program = knapsack(5, 40)
    solver = build(MipOptions())
    best = solver.solve(program, work_limit=None, time_limit_s=10.0, gap=1e-3)
    again = solver.solve(program, work_limit=0, time_limit_s=None, gap=0.0, start=best.x)
    assert again.x is not None
    assert again.objective <= best.objective + 1e-6


def test_what_is_not_a_number_is_refused() -> None:
    program = dense([1.0, 1.0], [[1.0, 1.0]], at_least=[1.0])
    program.data[0] = np.nan
    with pytest.raises(SolverError, match="CBC"):
        build(MipOptions()).solve(program, work_limit=None, time_limit_s=None, gap=0.0)


def test_nothing_is_printed() -> None:
    code = (
        "from coral_solver_mip.options import MipOptions\n"
        "from coral_solver_mip.solver import build\n"
        "from coral.testing.programs import dense, random_covering\n"
        "for program in (random_covering(1), dense([1.0], [[1.0]], at_least=[2.0])):\n"
        "    s = build(MipOptions()).solve(program, work_limit=None, time_limit_s=9.0, gap=0.0)\n"
        "    print(s.status, flush=True)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "optimal\noptimal\n"


def test_importing_the_plugin_costs_nothing() -> None:
    code = "import coral_solver_mip, sys; assert not {'mip', 'cffi', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
