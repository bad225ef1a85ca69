from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from coral_solver_ipopt.options import IpoptOptions
from coral_solver_ipopt.solver import IpoptSolver, build

from coral.errors import SolverError
from coral.testing.nonlinear import NonlinearContract
from coral.testing.programs import dense, random_covering
from coral.testing.solver import SolverContract

pytest.importorskip("cyipopt", reason="cyipopt is not installed: it is built against Ipopt's own library")


class TestIpopt(SolverContract):
    @pytest.fixture
    def solver(self) -> IpoptSolver:
        return build(IpoptOptions())


class TestIpoptNonlinear(NonlinearContract):
    @pytest.fixture
    def solver(self) -> IpoptSolver:
        return build(IpoptOptions())


def test_integers_are_refused() -> None:
    with pytest.raises(SolverError, match="integer variables") as raised:
        build(IpoptOptions()).solve(random_covering(1), work_limit=None, time_limit_s=None, gap=0.0)
    assert raised.value.mend is not None


def test_a_work_limit_is_iterations() -> None:
    program = dense([-3, -2], [[1, 1], [1, 3]], at_most=[4, 6], upper=[3, np.inf])
    runs = [build(IpoptOptions()).solve(program, work_limit=3, time_limit_s=None, gap=0.0) for _ in range(2)]
    assert {run.status for run in runs} <= {"feasible", "no_solution"}
    assert [run.work for run in runs] == [3, 3]
    assert runs[0].objective == runs[1].objective or runs[0].x is None


def test_a_start_is_where_it_begins() -> None:
    program = dense([1.0, 1.0], [[1.0, 2.0]], at_least=[2.0], upper=[5.0, 5.0])
    solver = build(IpoptOptions())
    near = solver.solve(program, work_limit=0, time_limit_s=None, gap=0.0, start=np.array([0.5, 1.5]))
    assert near.x is not None
    assert near.objective == pytest.approx(2.0)


def test_its_own_options_reach_it() -> None:
    program = dense([1.0], [[1.0]], at_least=[2.0])
    few = build(IpoptOptions(solver_options={"max_iter": 1}))
    assert few.solve(program, work_limit=None, time_limit_s=None, gap=0.0).status != "optimal"
    wrong = build(IpoptOptions(solver_options={"no_such_option": 1}))
    with pytest.raises(SolverError, match="no_such_option"):
        wrong.solve(program, work_limit=None, time_limit_s=None, gap=0.0)


def test_what_is_not_a_number_is_refused() -> None:
    program = dense([1.0, 1.0], [[1.0, 1.0]], at_least=[1.0])
    program.data[0] = np.nan
    with pytest.raises(SolverError, match="Ipopt"):
        build(IpoptOptions()).solve(program, work_limit=None, time_limit_s=None, gap=0.0)


def test_nothing_is_printed() -> None:
    code = (
        "from coral_solver_ipopt.options import IpoptOptions\n"
        "from coral_solver_ipopt.solver import build\n"
        "from coral.testing.programs import dense\n"
        "program = dense([1.0], [[1.0]], at_least=[2.0])\n"
        "print(build(IpoptOptions()).solve(program, work_limit=None, time_limit_s=9.0, gap=0.0).status)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "optimal\n"


def test_importing_the_plugin_costs_nothing() -> None:
    code = "import coral_solver_ipopt, sys; assert not {'cyipopt', 'scipy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
