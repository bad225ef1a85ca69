from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from coral_solver_pyomo.options import LimitOptions, PyomoOptions
from coral_solver_pyomo.solver import PyomoSolver, build

from coral.errors import PluginError, SolverError
from coral.testing.programs import dense, knapsack, random_covering
from coral.testing.solver import SolverContract


def installed(name: str) -> PyomoSolver:
    """The solver of that name; CBC's own package has a program of it too."""
    try:
        return build(PyomoOptions(solver=name))
    except PluginError as error:
        if name == "cbc":
            cbcbox = pytest.importorskip("cbcbox", reason="neither cbc nor cbcbox is installed")
            program = Path(cbcbox.cbc_dist_dir()) / "bin" / "cbc"
            return build(PyomoOptions(solver=name, executable=program))
        pytest.skip(error.message)


class TestAppsiHighs(SolverContract):
    @pytest.fixture
    def solver(self) -> PyomoSolver:
        return installed("appsi_highs")


class TestCbc(SolverContract):
    @pytest.fixture
    def solver(self) -> PyomoSolver:
        return installed("cbc")


class TestGlpk(SolverContract):
    @pytest.fixture
    def solver(self) -> PyomoSolver:
        return installed("glpk")


def test_nothing_to_decide() -> None:
    solution = installed("appsi_highs").solve(dense([]), work_limit=None, time_limit_s=None, gap=0.0)
    assert solution.status == "optimal"
    assert solution.x is not None
    assert solution.x.shape == (0,)


def test_an_unknown_solver_is_told_what_is_there() -> None:
    with pytest.raises(
        PluginError, match="Pyomo knows no solver 'apsi_highs', did you mean appsi_highs"
    ) as raised:
        build(PyomoOptions(solver="apsi_highs"))
    assert raised.value.mend is not None
    assert "installed: appsi_highs" in raised.value.mend
    assert "gurobi" in raised.value.mend


def test_a_solver_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="solver 'cbc' is not installed at") as raised:
        build(PyomoOptions(solver="cbc", executable=tmp_path / "cbc"))
    assert raised.value.mend is not None
    assert "executable" in raised.value.mend


def test_a_limit_that_a_solver_cannot_be_told_is_an_error() -> None:
    glpk = installed("glpk")
    assert not glpk.features.deterministic_work_limit
    with pytest.raises(SolverError, match="a limit of nodes is not known") as raised:
        glpk.solve(random_covering(1), work_limit=5, time_limit_s=None, gap=0.0)
    assert raised.value.mend is not None
    assert "limit_options: {nodes: ...}" in raised.value.mend


def test_names_of_limits_may_be_given() -> None:
    """As for a solver that the plugin does not know; here a name that GLPK does not have."""
    installed("glpk")
    named = build(PyomoOptions(solver="glpk", limit_options=LimitOptions(gap="no_such_option")))
    with pytest.raises(SolverError, match="'glpk' failed"):
        named.solve(random_covering(1), work_limit=None, time_limit_s=5.0, gap=0.0)


def test_the_solvers_own_options_reach_it() -> None:
    program = knapsack(2, 50)
    limited = build(PyomoOptions(solver="appsi_highs", solver_options={"mip_max_nodes": 1}))
    assert limited.solve(program, work_limit=None, time_limit_s=20.0, gap=0.0).status != "optimal"


def test_glpk_within_its_gap_claims_no_more_than_that() -> None:
    program = knapsack(4, 30)
    solution = installed("glpk").solve(program, work_limit=None, time_limit_s=20.0, gap=0.05)
    assert solution.status == "optimal"
    assert solution.bound == pytest.approx(solution.objective - 0.05 * abs(solution.objective))


def test_what_is_not_a_number_is_refused() -> None:
    program = dense([1.0, 1.0], [[1.0, 1.0]], at_least=[1.0])
    program.data[0] = np.nan
    with pytest.raises(SolverError, match="Pyomo"):
        installed("appsi_highs").solve(program, work_limit=None, time_limit_s=None, gap=0.0)


def test_nothing_is_printed() -> None:
    code = (
        "from coral_solver_pyomo.options import PyomoOptions\n"
        "from coral_solver_pyomo.solver import build\n"
        "from coral.testing.programs import random_covering\n"
        "s = build(PyomoOptions()).solve(random_covering(1), work_limit=None, time_limit_s=9.0, gap=0.0)\n"
        "print(s.status)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "optimal\n"


def test_importing_the_plugin_costs_nothing() -> None:
    code = "import coral_solver_pyomo, sys; assert not {'pyomo', 'highspy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
