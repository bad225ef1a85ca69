"""What a solver does to its process does nothing to its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from coral.core.plugins import Registry, load_plugins
from coral.core.solve import SupervisedSolver, supervised_solver
from coral.errors import PluginError, SolverError
from coral.testing.processes import alive
from coral.testing.programs import dense, knapsack
from coral.testing.solver import SolverContract
from coral.types.program import Solution

MISBEHAVING = Path(__file__).with_name("misbehaving.py")
PROGRAM = dense([1.0, 2.0], [[1.0, 1.0]], at_least=[1.0], upper=[2.0, 3.0])
OTHER = dense([1.0], upper=[4.0])
MEMORY_BYTES = 512 << 20

Make = Callable[..., SupervisedSolver]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins([MISBEHAVING])


@pytest.fixture
def make(registry: Registry) -> Iterator[Make]:
    made: list[SupervisedSolver] = []

    def make_one(how: str = "behave", *, time_limit_s: float = 5.0, **options: object) -> SupervisedSolver:
        offering = registry.offering("solver", "misbehaving")
        solver = SupervisedSolver(
            "misbehaving",
            {"how": how, **options},
            offering.record,
            memory_bytes=MEMORY_BYTES,
            hard_limit_s=lambda limit: limit + 0.2,
        )
        made.append(solver)
        return solver

    yield make_one
    for solver in made:
        solver.close()


def solved(solver: SupervisedSolver, *, time_limit_s: float | None = 20.0, other: bool = False) -> Solution:
    return solver.solve(OTHER if other else PROGRAM, work_limit=None, time_limit_s=time_limit_s, gap=0.0)


def gone_within(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture(scope="module")
def highs() -> Iterator[SupervisedSolver]:
    solver = supervised_solver(load_plugins(), "highs", time_limit_s=30.0)
    assert isinstance(solver, SupervisedSolver)
    yield solver
    solver.close()


class TestSupervisedHighs(SolverContract):
    """A solver in a process of its own keeps the contract that it keeps in this one."""

    @pytest.fixture
    def solver(self, highs: SupervisedSolver) -> SupervisedSolver:
        return highs


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("abort", "took its process down (SIGABRT)"),
        ("segfault", "took its process down (SIGSEGV)"),
        ("exit", "took its process down (exit status 3)"),
        ("leak", "MemoryError"),
        ("raise", "ValueError: not my day"),
        ("refuse", "the licence has run out"),
    ],
)
def test_a_solver_that_breaks_is_an_error_and_the_next_solve_works(make: Make, how: str, says: str) -> None:
    solver = make(how, only_columns=2)
    with pytest.raises(SolverError) as raised:
        solved(solver)
    assert says in raised.value.message
    assert solved(solver, other=True).objective == 4.0


def test_a_solver_that_ignores_its_time_limit_is_killed(make: Make) -> None:
    solver = make("hang", only_columns=2)
    assert solver.features.integer
    pid = solver.pid
    assert pid is not None
    with pytest.raises(SolverError, match="into a solve of at most"):
        solved(solver, time_limit_s=0.3)
    assert not alive(pid)
    assert solved(solver, other=True).status == "optimal"
    assert solver.pid != pid


@pytest.mark.parametrize("how", ["abort after incumbents", "hang after incumbents"])
def test_its_last_incumbent_is_the_answer(make: Make, how: str) -> None:
    told: list[float] = []
    solution = make(how).solve(
        PROGRAM,
        work_limit=None,
        time_limit_s=0.5,
        gap=0.0,
        on_incumbent=lambda x, bound: told.append(float(x.sum())),
    )
    assert solution.status == "feasible"
    assert solution.x is not None
    np.testing.assert_array_equal(solution.x, PROGRAM.upper)
    assert (solution.objective, solution.bound) == (8.0, -7.0)
    assert "last incumbent" in solution.termination
    assert solution.failure
    assert told == [7.0, 5.0]


@pytest.mark.parametrize(("start", "holds"), [([1.0, 0.0], True), ([0.0, 0.0], False)])
def test_a_start_that_holds_is_an_incumbent(make: Make, start: list[float], holds: bool) -> None:
    solver = make("hang")
    if holds:
        solution = solver.solve(PROGRAM, work_limit=None, time_limit_s=0.3, gap=0.0, start=np.array(start))
        assert (solution.status, solution.objective, solution.bound) == ("feasible", 1.0, -np.inf)
        return
    with pytest.raises(SolverError, match="was killed"):
        solver.solve(PROGRAM, work_limit=None, time_limit_s=0.3, gap=0.0, start=np.array(start))


def test_without_a_time_limit_it_is_waited_for(make: Make) -> None:
    assert solved(make("sleep"), time_limit_s=None).status == "optimal"


def test_its_process_is_kept_between_solves(make: Make) -> None:
    solver = make()
    assert solved(solver).x is not None
    pid = solver.pid
    assert [solved(solver, other=True).objective for _ in range(3)] == [4.0] * 3
    assert solver.pid == pid


def test_a_process_that_dies_between_solves_is_started_again(make: Make) -> None:
    solver = make()
    solved(solver)
    assert solver.pid is not None
    os.kill(solver.pid, signal.SIGKILL)
    assert gone_within(solver.pid, 5.0)
    assert solved(solver).status == "optimal"


def test_what_building_raises_arrives_as_it_was(make: Make) -> None:
    solver = make("not built")
    for _ in range(2):
        with pytest.raises(SolverError, match="this solver has no licence") as raised:
            solved(solver)
        assert raised.value.mend == "buy one"


def test_an_abort_while_building_is_an_error(make: Make) -> None:
    with pytest.raises(SolverError, match=r"died while the solver was built \(SIGABRT"):
        _ = make("abort when built").features


def test_threads_take_turns(make: Make) -> None:
    solver = make()
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda: found.append(solved(solver, other=True).objective)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert found == [4.0] * 8


def test_the_caller_leaving_a_solve_ends_it(make: Make) -> None:
    solver = make("hang after incumbents", only_columns=2)

    def leave(x: object, bound: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solver.solve(PROGRAM, work_limit=None, time_limit_s=60.0, gap=0.0, on_incumbent=leave)
    assert solved(solver, other=True).status == "optimal"


def test_closing_leaves_nothing_running(make: Make) -> None:
    solver = make()
    solved(solver)
    pid = solver.pid
    assert pid is not None
    solver.close()
    assert not alive(pid)


def test_a_solver_that_is_dropped_is_ended(make: Make, registry: Registry) -> None:
    solver = SupervisedSolver("misbehaving", {}, registry.offering("solver", "misbehaving").record)
    solved(solver)
    pid = solver.pid
    assert pid is not None
    del solver
    assert gone_within(pid, 5.0)


def test_what_a_killed_solver_had_started_ends_with_it(make: Make, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(SolverError, match="was killed"):
        solved(make("start a process and hang", pids=str(pids)), time_limit_s=2.0)
    assert gone_within(int(pids.read_text()), 5.0)


CALLER = """
import sys, threading
from pathlib import Path
from coral.core.plugins import load_plugins
from coral.core.solve import supervised_solver
from coral.testing.programs import dense

registry = load_plugins([sys.argv[1]])
options = {"how": "start a process and hang", "pids": sys.argv[2]}
solver = supervised_solver(registry, "misbehaving", options, time_limit_s=60.0)
solver.features
print(solver.pid, flush=True)
program = dense([1.0], upper=[1.0])
ask = lambda: solver.solve(program, work_limit=None, time_limit_s=500.0, gap=0.0)
threading.Thread(target=ask, daemon=True).start()
sys.stdin.read()
"""


def test_a_caller_that_is_killed_takes_the_solver_and_its_processes_along(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(MISBEHAVING), str(pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert caller.stdout is not None
        solver = int(caller.stdout.readline())
        until = time.monotonic() + 30.0
        while not (pids.exists() and pids.read_text().endswith("\n")) and time.monotonic() < until:
            time.sleep(0.05)
        started = int(pids.read_text())
        assert alive(solver)
        assert alive(started)
    finally:
        caller.kill()
        caller.communicate()
    assert gone_within(solver, 5.0), "a hanging solver outlived its caller"
    assert gone_within(started, 5.0), "what the solver had started outlived its caller"


def test_a_fork_of_the_caller_ends_nothing(make: Make) -> None:
    """Nor does it keep the solver alive: it has let its ends go."""
    solver = make()
    solved(solver)
    pid = solver.pid
    assert pid is not None
    code = os.fork()
    if code == 0:
        solver.close()
        os._exit(0)
    assert os.waitpid(code, 0)[1] == 0
    assert alive(pid)
    assert solved(solver).status == "optimal"


def test_highs_tells_of_incumbents_through_its_process(highs: SupervisedSolver) -> None:
    told: list[float] = []
    program = knapsack(3, 60)
    solution = highs.solve(
        program,
        work_limit=None,
        time_limit_s=10.0,
        gap=1e-3,
        on_incumbent=lambda x, bound: told.append(float(program.cost @ x)),
    )
    assert told
    assert told[-1] == pytest.approx(solution.objective)


def test_which_solvers_get_a_process(registry: Registry) -> None:
    limited = supervised_solver(registry, "misbehaving", {}, time_limit_s=1.0)
    aborting = supervised_solver(registry, "misbehaving", {"may_abort": True}, time_limit_s=None)
    for solver in (limited, aborting):
        assert isinstance(solver, SupervisedSolver)
        assert not solver.features.may_abort_process
        solver.close()
    assert not isinstance(supervised_solver(registry, "misbehaving", {}, time_limit_s=None), SupervisedSolver)
    with pytest.raises(PluginError, match="unknown solver 'higs', did you mean highs"):
        supervised_solver(registry, "higs", time_limit_s=1.0)
