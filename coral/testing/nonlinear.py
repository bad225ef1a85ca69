"""The contract of solvers that minimise smooth functions under smooth constraints."""

from __future__ import annotations

import time

import numpy as np
import pytest

from coral.errors import SolverError
from coral.hookspecs.solver import NonlinearSolver
from coral.testing.contract import Contract
from coral.types.program import Floats, NonlinearProgram

INF = float("inf")
NO_ROWS = np.zeros(0)


def rosenbrock() -> NonlinearProgram:
    """Its minimum, at (1, 1), lies outside of the bounds: within x <= 0.8 it is at (0.8, 0.64)."""
    return NonlinearProgram(
        start=np.array([-1.2, 1.0]),
        lower=np.array([-2.0, -2.0]),
        upper=np.array([0.8, 2.0]),
        row_lower=NO_ROWS,
        row_upper=NO_ROWS,
        objective=lambda x: float(100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2),
        gradient=lambda x: np.array(
            [-400 * x[0] * (x[1] - x[0] ** 2) - 2 * (1 - x[0]), 200 * (x[1] - x[0] ** 2)]
        ),
        rows=lambda x: NO_ROWS,
        jacobian=lambda x: np.zeros((0, 2)),
    )


def hock_schittkowski_71() -> NonlinearProgram:
    """Hock and Schittkowski (1981), problem 71: a product at least 25, squares that sum to 40; 17.0140173."""
    return NonlinearProgram(
        start=np.array([1.0, 5.0, 5.0, 1.0]),
        lower=np.full(4, 1.0),
        upper=np.full(4, 5.0),
        row_lower=np.array([25.0, 40.0]),
        row_upper=np.array([INF, 40.0]),
        objective=lambda x: float(x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]),
        gradient=lambda x: np.array(
            [
                x[3] * (2 * x[0] + x[1] + x[2]),
                x[0] * x[3],
                x[0] * x[3] + 1,
                x[0] * (x[0] + x[1] + x[2]),
            ]
        ),
        rows=lambda x: np.array([x.prod(), (x**2).sum()]),
        jacobian=lambda x: np.vstack([x.prod() / x, 2 * x]),
    )


def convex_fit(seed: int) -> tuple[NonlinearProgram, Floats]:
    """Fit values on a grid to noisy ones of a convex increasing curve, so that they are convex and
    increasing; and the noisy values."""
    draw = np.random.default_rng(seed)
    at = np.linspace(0.0, 1.0, 12)
    noisy = at**2 + draw.normal(0, 0.05, len(at))
    n = len(at)
    rises = np.diff(np.eye(n), axis=0)
    bends = np.diff(np.eye(n), n=2, axis=0)
    matrix = np.vstack([rises, bends])
    return (
        NonlinearProgram(
            start=noisy.copy(),
            lower=np.full(n, -INF),
            upper=np.full(n, INF),
            row_lower=np.zeros(len(matrix)),
            row_upper=np.full(len(matrix), INF),
            objective=lambda x: 0.5 * float(((x - noisy) ** 2).sum()),
            gradient=lambda x: x - noisy,
            rows=lambda x: matrix @ x,
            jacobian=lambda x: matrix,
        ),
        noisy,
    )


class NonlinearContract(Contract):
    """Needs the fixture `solver`."""

    @pytest.fixture
    def solver(self) -> NonlinearSolver:
        self._undefined("solver")

    def test_it_says_what_it_is(self, solver: NonlinearSolver) -> None:
        assert isinstance(solver, NonlinearSolver)

    def test_bounds(self, solver: NonlinearSolver) -> None:
        solution = solver.minimise(rosenbrock(), time_limit_s=20.0)
        assert solution.status == "optimal", solution
        assert solution.x is not None
        np.testing.assert_allclose(solution.x, [0.8, 0.64], atol=1e-5)
        assert solution.objective == pytest.approx(0.04, abs=1e-6)

    def test_constraints(self, solver: NonlinearSolver) -> None:
        program = hock_schittkowski_71()
        solution = solver.minimise(program, time_limit_s=20.0)
        assert solution.status == "optimal", solution
        assert solution.x is not None
        np.testing.assert_allclose(solution.x, [1.0, 4.742999, 3.821150, 1.379408], atol=1e-4)
        assert solution.objective == pytest.approx(17.0140173, abs=1e-5)

    def test_duals_are_derivatives(self, solver: NonlinearSolver) -> None:
        program, step = hock_schittkowski_71(), 1e-3
        solution = solver.minimise(program, time_limit_s=20.0)
        if solution.row_duals is None:
            pytest.skip("this solver gives no duals of nonlinear programs")
        for row in range(2):
            moved = [
                solver.minimise(_moved(program, row, by), time_limit_s=20.0).objective for by in (-step, step)
            ]
            assert solution.row_duals[row] == pytest.approx((moved[1] - moved[0]) / (2 * step), abs=1e-3)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_fit_with_a_shape(self, solver: NonlinearSolver, seed: int) -> None:
        """The optimality conditions, checked here: the residual is a combination of the rows that bind."""
        program, noisy = convex_fit(seed)
        solution = solver.minimise(program, time_limit_s=20.0)
        assert solution.status == "optimal", solution
        assert solution.x is not None
        rows = program.rows(solution.x)
        assert rows.min() >= -1e-7
        # A projection onto a cone: what is left is orthogonal to the answer, and no direction improves.
        left = noisy - solution.x
        assert float(left @ solution.x) == pytest.approx(0.0, abs=1e-6)
        assert solution.objective == pytest.approx(0.5 * float(left @ left), rel=1e-6)
        for wanted in (np.linspace(0, 1, len(noisy)) ** 2, np.linspace(0, 1, len(noisy)) ** 3):
            assert float(left @ wanted) <= 1e-6

    def test_no_point_satisfies_the_constraints(self, solver: NonlinearSolver) -> None:
        program = NonlinearProgram(
            start=np.array([0.5]),
            lower=np.array([0.0]),
            upper=np.array([1.0]),
            row_lower=np.array([2.0]),
            row_upper=np.array([INF]),
            objective=lambda x: float(x[0]),
            gradient=lambda x: np.ones(1),
            rows=lambda x: x**2,
            jacobian=lambda x: (2 * x).reshape(1, 1),
        )
        assert solver.minimise(program, time_limit_s=20.0).status == "infeasible"

    def test_a_function_that_raises(self, solver: NonlinearSolver) -> None:
        def broken(x: Floats) -> float:
            raise ZeroDivisionError("no such step")

        program = rosenbrock()
        with pytest.raises(SolverError, match="no such step"):
            solver.minimise(_with(program, objective=broken), time_limit_s=20.0)

    def test_a_function_that_is_not_finite(self, solver: NonlinearSolver) -> None:
        program = rosenbrock()
        with pytest.raises(SolverError):
            solver.minimise(_with(program, objective=lambda x: float("nan")), time_limit_s=20.0)

    def test_a_time_limit_is_kept(self, solver: NonlinearSolver) -> None:
        plain = rosenbrock()

        def slow(x: Floats) -> float:
            time.sleep(0.05)
            return plain.objective(x)

        began = time.monotonic()
        solution = solver.minimise(_with(plain, objective=slow), time_limit_s=0.2)
        assert time.monotonic() - began < 10.0
        assert solution.status == "feasible", solution


def _with(program: NonlinearProgram, **changed: object) -> NonlinearProgram:
    from msgspec.structs import replace

    return replace(program, **changed)


def _moved(program: NonlinearProgram, row: int, by: float) -> NonlinearProgram:
    low, high = program.row_lower.copy(), program.row_upper.copy()
    low[row] += by
    high[row] += by
    return _with(program, row_lower=low, row_upper=high)
