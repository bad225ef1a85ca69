"""The contract of solver backends."""

from __future__ import annotations

import time

import numpy as np
import pytest
from msgspec import structs

from coral.errors import SolverError
from coral.hookspecs.solver import Solver
from coral.testing.contract import Contract
from coral.testing.programs import INF, best_by_enumeration, dense, knapsack, market_split, random_covering
from coral.types.program import Program, Solution

TOLERANCE = 1e-6


def solved(
    solver: Solver, program: Program, *, work: int | None = None, time: float | None = 20.0, gap: float = 1e-6
) -> Solution:
    return solver.solve(program, work_limit=work, time_limit_s=time, gap=gap)


def check_optimal(program: Program, solution: Solution, optimum: float) -> None:
    assert solution.status == "optimal", solution
    assert solution.x is not None
    assert program.violation(solution.x) <= TOLERANCE
    assert solution.objective == pytest.approx(optimum, abs=1e-5, rel=1e-5)
    assert solution.objective == pytest.approx(float(program.cost @ solution.x), abs=1e-5, rel=1e-5)
    assert solution.bound <= optimum + 1e-5 * max(1.0, abs(optimum))


class SolverContract(Contract):
    """Needs the fixture `solver`. Tests of integer programs are skipped where its features lack them."""

    @pytest.fixture
    def solver(self) -> Solver:
        self._undefined("solver")

    @pytest.fixture
    def integer_solver(self, solver: Solver) -> Solver:
        if not solver.features.integer:
            pytest.skip("this solver takes no integer programs, and says so in its features")
        return solver

    def test_continuous_optimum(self, solver: Solver) -> None:
        program = dense([-3, -2], [[1, 1], [1, 3]], at_most=[4, 6], upper=[3, INF])
        check_optimal(program, solved(solver, program), -11.0)

    def test_no_rows(self, solver: Solver) -> None:
        program = dense([2.0, -1.0], lower=[1.0, 0.0], upper=[5.0, 4.0])
        check_optimal(program, solved(solver, program), -2.0)

    def test_equality_rows(self, solver: Solver) -> None:
        program = dense([1, 2, 3], [[1, 1, 1], [1, -1, 0]], at_least=[6, 1], at_most=[6, 1], upper=[3, 9, 9])
        check_optimal(program, solved(solver, program), 3 + 4 + 3)

    def test_infinite_bounds(self, solver: Solver) -> None:
        program = dense([1, 1], [[1, 0], [1, 1]], at_least=[-5, -7], lower=[-INF, -INF])
        check_optimal(program, solved(solver, program), -7.0)

    def test_rows_with_both_bounds(self, solver: Solver) -> None:
        program = dense([1, -1], [[1, -1]], at_least=[-2], at_most=[3], upper=[10, 10])
        check_optimal(program, solved(solver, program), -2.0)

    def test_infeasible(self, solver: Solver) -> None:
        program = dense([1, 1], [[1, 1], [1, 1]], at_least=[5, -INF], at_most=[INF, 4])
        solution = solved(solver, program)
        assert solution.status == "infeasible"
        assert solution.x is None

    def test_unbounded(self, solver: Solver) -> None:
        program = dense([-1, 0], [[1, -1]], at_most=[1])
        solution = solved(solver, program)
        assert solution.status == "unbounded"

    def test_free_variables(self, solver: Solver) -> None:
        # x free, y >= -3, their sum at least -10 and their difference at most 2.
        program = dense([1, 3], [[1, 1], [1, -1]], at_least=[-10, -INF], at_most=[INF, 2], lower=[-INF, -3])
        check_optimal(program, solved(solver, program), -7.0 - 9.0)

    def test_variables_without_entries(self, solver: Solver) -> None:
        program = dense(
            [1, 2, -3, 0, 0],
            [[1, 0, 0, 0, 0]],
            at_least=[2],
            lower=[0, 1, 0, -5, 2],
            upper=[9, 9, 4, -5, 9],
        )
        check_optimal(program, solved(solver, program), 2 + 2 - 12)

    def test_rows_without_entries_or_bounds(self, solver: Solver) -> None:
        rows = [[0, 0], [1, 1], [1, -1]]
        program = dense([1, 2], rows, at_least=[-1, 3, -INF], at_most=[0, INF, INF], upper=[2, 9])
        check_optimal(program, solved(solver, program), 2 + 2)
        never = dense([1, 2], rows, at_least=[1, 3, -INF], at_most=[4, INF, INF], upper=[2, 9])
        assert solved(solver, never).status == "infeasible"

    def test_no_objective(self, solver: Solver) -> None:
        program = dense([0, 0], [[1, 1]], at_least=[3], upper=[2, 2])
        check_optimal(program, solved(solver, program), 0.0)

    @pytest.mark.parametrize("scale", [2.0**-34, 1e-6, 1e-3, 1e7])
    def test_a_small_or_large_objective(self, solver: Solver, scale: float) -> None:
        """Proven at its own scale: solvers have absolute tolerances."""
        program = dense(
            [3 * scale, 2 * scale, 7 * scale], [[1, 1, 3], [1, 0, 2]], at_least=[4, 2.5], upper=[3, 1, 9]
        )
        optimum = (2 * 0.25 + 7 * 1.25) * scale  # at (0, 1/4, 5/4)
        self._check_relative(program, solved(solver, program, gap=0.0), optimum)

    @pytest.mark.parametrize("scale", [2.0**-34, 1e-6, 1e-3, 1e7])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_small_or_large_integer_objective(
        self, integer_solver: Solver, scale: float, seed: int
    ) -> None:
        plain = random_covering(seed, columns=6, rows=4)
        program = structs.replace(plain, cost=plain.cost * scale)
        best = best_by_enumeration(plain) * scale
        self._check_relative(program, solved(integer_solver, program, gap=0.0), best)

    def _check_relative(self, program: Program, solution: Solution, optimum: float) -> None:
        assert solution.status == "optimal", solution
        assert solution.x is not None
        assert program.violation(solution.x) <= TOLERANCE
        assert float(program.cost @ solution.x) == pytest.approx(optimum, rel=1e-6, abs=0.0)
        assert solution.objective == pytest.approx(optimum, rel=1e-6, abs=0.0)
        assert solution.bound == pytest.approx(optimum, rel=1e-6, abs=0.0)

    def test_a_big_constant_lets_nothing_through(self, integer_solver: Solver) -> None:
        # y may be 7 only where the switch is on, which costs 100; 1e5 is the constant that ties them.
        program = dense(
            [1, 100],
            [[1, 0], [1, -1e5]],
            at_least=[7, -INF],
            at_most=[INF, 0],
            integer=[False, True],
            upper=[INF, 1],
        )
        solution = solved(integer_solver, program, gap=0.0)
        check_optimal(program, solution, 107.0)

    def test_integer_optimum(self, integer_solver: Solver) -> None:
        program = dense([-5, -4, -3], [[2, 3, 1], [4, 1, 2], [3, 4, 2]], at_most=[5, 11, 8], integer=True)
        program_bounded = dense(
            [-5, -4, -3], [[2, 3, 1], [4, 1, 2], [3, 4, 2]], at_most=[5, 11, 8], upper=[5, 5, 5], integer=True
        )
        check_optimal(program, solved(integer_solver, program), best_by_enumeration(program_bounded))

    @pytest.mark.parametrize("seed", range(12))
    def test_integer_optimum_equals_enumeration(self, integer_solver: Solver, seed: int) -> None:
        program = random_covering(seed)
        check_optimal(program, solved(integer_solver, program), best_by_enumeration(program))

    def test_mixed_integer_optimum(self, integer_solver: Solver) -> None:
        # One machine at 3 serves 2.5; what it does not serve costs 2 each: x = 1, y = 0.5.
        program = dense([3, 2], [[2.5, 1]], at_least=[3.0], integer=[True, False])
        check_optimal(program, solved(integer_solver, program), 4.0)

    def test_integer_infeasible(self, integer_solver: Solver) -> None:
        program = dense([1, 1], [[2, 2]], at_least=[3], at_most=[3], upper=[5, 5], integer=True)
        assert solved(integer_solver, program).status == "infeasible"

    def test_a_limit_with_an_incumbent_is_a_normal_result(self, integer_solver: Solver) -> None:
        program = knapsack(1, 60)
        deterministic = integer_solver.features.deterministic_work_limit
        limits: list[tuple[int | None, float | None]] = [
            (None, 0.2),
            (1, None if deterministic else 5.0),
            (200, None if deterministic else 5.0),
        ]
        for work, seconds in limits:
            try:
                solution = solved(integer_solver, program, work=work, time=seconds, gap=0.0)
            except SolverError:
                assert work is not None, "a time limit is no error"
                assert not deterministic, "its features promise a work limit"
                continue
            assert solution.status in ("optimal", "feasible", "no_solution"), solution
            if solution.x is None:
                assert solution.status == "no_solution"
                continue
            assert program.violation(solution.x) <= TOLERANCE
            assert solution.objective == pytest.approx(float(program.cost @ solution.x), rel=1e-6)
            assert solution.bound <= solution.objective + 1e-6 * abs(solution.objective)
            if solution.status == "optimal":
                assert solution.objective - solution.bound <= 1e-6 * abs(solution.objective), "not proven"

    def test_optimal_means_within_the_gap(self, integer_solver: Solver) -> None:
        program = random_covering(99, columns=5, rows=4)
        optimum = best_by_enumeration(program)
        for gap in (0.5, 0.05, 0.0):
            solution = solved(integer_solver, program, gap=gap)
            assert solution.status == "optimal"
            assert solution.objective <= optimum / (1 - gap) + 1e-6
            assert solution.objective - solution.bound <= gap * abs(solution.objective) + 1e-6
            assert solution.bound <= optimum + 1e-6

    def test_a_start_changes_no_optimum(self, integer_solver: Solver) -> None:
        program = random_covering(7)
        optimum = best_by_enumeration(program)
        for start in (np.full(4, 3.0), np.zeros(4), np.full(4, -1.0)):  # feasible, infeasible, out of bounds
            solution = integer_solver.solve(
                program, work_limit=None, time_limit_s=20.0, gap=1e-6, start=start
            )
            check_optimal(program, solution, optimum)

    def test_solves_are_independent(self, solver: Solver) -> None:
        first = dense([-3, -2], [[1, 1]], at_most=[4], upper=[3, INF])
        other = dense([1, 1, 1], [[1, 1, 1]], at_least=[2])
        results = [solved(solver, one) for one in (first, other, first, other)]
        assert [round(r.objective, 6) for r in results] == [-11.0, 2.0, -11.0, 2.0]

    def test_input_is_left_as_it_is(self, solver: Solver) -> None:
        program = dense([1, 2], [[1, 1], [1, 0]], at_least=[2, -INF], at_most=[INF, 1.5])
        names = ("cost", "indptr", "indices", "data", "row_lower", "row_upper", "lower", "upper", "integer")
        before = {name: getattr(program, name).copy() for name in names}
        solved(solver, program)
        for name in names:
            np.testing.assert_array_equal(getattr(program, name), before[name], err_msg=name)

    @pytest.mark.parametrize(
        ("at_least", "at_most"),
        [
            ([4.0, 6.0], [INF, INF]),
            ([-INF, 6.0], [3.0, INF]),
            ([4.0, 8.0], [4.0, 8.0]),
            ([-5.0, 6.0], [3.0, 9.0]),
            ([1.0, 1.0], [INF, INF]),
        ],
        ids=["at least", "at most", "equal", "both", "one is slack"],
    )
    def test_duals_are_derivatives(self, solver: Solver, at_least: list[float], at_most: list[float]) -> None:
        """Of the objective by the bound that binds, whatever kind of row it is; 0 where none does."""
        if not solver.features.duals:
            pytest.skip("this solver gives no duals, and says so in its features")
        cost, rows, step = [-1.0, 4.0], [[1.0, 1.0], [1.0, 3.0]], 0.01

        def best(by: float = 0.0, row: int = 0) -> Solution:
            low, high = np.array(at_least), np.array(at_most)
            low[row] += by
            high[row] += by
            program = dense(cost, rows, at_least=low.tolist(), at_most=high.tolist(), upper=[2.5, INF])
            return solved(solver, program)

        solution = best()
        assert solution.row_duals is not None
        assert solution.row_duals.shape == (2,)
        for row in range(2):
            change = (best(step, row).objective - best(-step, row).objective) / (2 * step)
            assert solution.row_duals[row] == pytest.approx(change, abs=1e-4)

    def test_a_time_limit_is_kept(self, integer_solver: Solver) -> None:
        """With a margin for what is not search; by far less than a proof would take."""
        program = market_split(1, rows=5)
        began = time.monotonic()
        solution = solved(integer_solver, program, time=0.5, gap=0.0)
        assert time.monotonic() - began < 15.0
        assert solution.status in ("feasible", "no_solution"), solution

    def test_a_work_limit_is_deterministic(self, integer_solver: Solver) -> None:
        if not integer_solver.features.deterministic_work_limit:
            pytest.skip("this solver's work limit is not deterministic, and its features say so")
        program = knapsack(2, 50)
        runs = [solved(integer_solver, program, work=50, time=None, gap=0.0) for _ in range(2)]
        assert runs[0].status == runs[1].status
        assert runs[0].objective == runs[1].objective or (runs[0].x is None and runs[1].x is None)
        assert runs[0].bound == runs[1].bound
