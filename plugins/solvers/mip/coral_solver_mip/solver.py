"""A neutral Program into CBC and a Solution out of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from coral.errors import SolverError
from coral.hookspecs.objective_scale import objective_scale
from coral.types.program import Floats, Program, Solution, SolverFeatures, Status
from coral_solver_mip.library import Library, library
from coral_solver_mip.quiet import silenced

if TYPE_CHECKING:
    from coral_solver_mip.options import MipOptions

LARGEST_INT = 2**31 - 1
LARGEST = float(np.finfo(np.float64).max)
"""CBC's infinity."""
LINEAR: dict[int, tuple[Status, str]] = {
    0: ("optimal", "optimal"),
    1: ("no_solution", "stopped at a limit"),
    2: ("infeasible", "infeasible"),
    3: ("unbounded", "unbounded"),
}
"""What `Cbc_solveLinearProgram` returns. What is not listed is a failure of CBC itself."""
SECONDARY = {
    2: "within the gap",
    3: "stopped at the limit of nodes",
    4: "stopped at the time limit",
    8: "stopped at the limit of iterations",
}


class MipSolver:
    """CBC installs handlers for SIGABRT and SIGSEGV and was seen to abort its process."""

    features = SolverFeatures(
        integer=True, duals=True, start=True, deterministic_work_limit=True, may_abort_process=True
    )

    def __init__(self, options: MipOptions) -> None:
        self._options = options

    def solve(
        self,
        program: Program,
        *,
        work_limit: int | None,
        time_limit_s: float | None,
        gap: float,
        start: Floats | None = None,
    ) -> Solution:
        """See `coral.hookspecs.solver.Solver`. Work is nodes of an integer program, else iterations."""
        if not (np.isfinite(program.cost).all() and np.isfinite(program.data).all()):
            raise SolverError("a program for CBC holds a cost or an entry that is not a finite number")
        if not program.columns:
            return _nothing_to_decide(program)
        began = time.monotonic()
        with silenced(not self._options.log), _model(library()) as (lib, model):
            scale = objective_scale(program.cost)
            _load(lib, model, program, scale)
            self._limit(lib, model, work_limit, time_limit_s, gap)
            if program.integer.any():
                if start is not None:
                    _start(lib, model, start)
                found = _branch(lib, model, program, scale)
            else:
                found = _linear(lib, model, program, scale)
        return Solution(**found, seconds=time.monotonic() - began)

    def _limit(
        self, lib: Library, model: Any, work_limit: int | None, time_limit_s: float | None, gap: float
    ) -> None:
        cbc, options = lib.cbc, self._options
        cbc.Cbc_setLogLevel(model, int(options.log))
        cbc.Cbc_setIntParam(model, cbc.INT_PARAM_ELAPSED_TIME, 1)
        cbc.Cbc_setIntParam(model, cbc.INT_PARAM_THREADS, options.threads)
        cbc.Cbc_setIntParam(model, cbc.INT_PARAM_RANDOM_SEED, options.random_seed)
        if not options.preprocess:
            cbc.Cbc_setParameter(model, b"preprocess", b"off")
        cbc.Cbc_setAllowableGap(model, 0.0)
        cbc.Cbc_setAllowableFractionGap(model, gap)
        if time_limit_s is not None:
            cbc.Cbc_setMaximumSeconds(model, max(0.0, time_limit_s))
        if work_limit is not None:
            most = min(max(0, work_limit), LARGEST_INT)
            cbc.Cbc_setMaximumNodes(model, most)
            cbc.Cbc_setMaximumIterations(model, most)


@contextmanager
def _model(lib: Library) -> Iterator[tuple[Library, Any]]:
    model = lib.cbc.Cbc_newModel()
    try:
        yield lib, model
    finally:
        lib.cbc.Cbc_deleteModel(model)


def _load(lib: Library, model: Any, program: Program, scale: float) -> None:
    ints = [program.indptr.astype(np.int32), program.indices.astype(np.int32)]
    floats = [
        np.ascontiguousarray(np.clip(array, -LARGEST, LARGEST))
        for array in (
            program.data,
            program.lower,
            program.upper,
            program.cost * scale,
            program.row_lower,
            program.row_upper,
        )
    ]
    pointers = [lib.ffi.from_buffer("int[]", array) for array in ints]
    pointers += [lib.ffi.from_buffer("double[]", array) for array in floats]
    lib.cbc.Cbc_loadProblem(model, program.columns, program.rows, *pointers)
    for column in np.flatnonzero(program.integer).tolist():
        lib.cbc.Cbc_setInteger(model, column)


def _start(lib: Library, model: Any, start: Floats) -> None:
    columns = np.arange(len(start), dtype=np.int32)
    values = np.ascontiguousarray(start, dtype=np.float64)
    lib.cbc.Cbc_setMIPStartI(
        model,
        len(start),
        lib.ffi.from_buffer("int[]", columns),
        lib.ffi.from_buffer("double[]", values),
    )


def _linear(lib: Library, model: Any, program: Program, scale: float) -> dict[str, Any]:
    code = lib.cbc.Cbc_solveLinearProgram(model)
    if code not in LINEAR:
        raise SolverError(f"CBC failed on a linear program (code {code})")
    status, termination = LINEAR[code]
    found: dict[str, Any] = {"status": status, "termination": termination}
    found["work"] = int(lib.cbc.Cbc_getIterationCount(model))
    if status == "infeasible":
        found["bound"] = math.inf
    if status == "optimal":
        x = _floats(lib, lib.cbc.Cbc_getColSolution(model), program.columns)
        found["x"] = x
        found["objective"] = found["bound"] = float(program.cost @ x)
        found["row_duals"] = _floats(lib, lib.cbc.Cbc_getRowPrice(model), program.rows) / scale
    return found


def _branch(lib: Library, model: Any, program: Program, scale: float) -> dict[str, Any]:
    cbc = lib.cbc
    cbc.Cbc_solve(model)
    if cbc.Cbc_isAbandoned(model):
        raise SolverError("CBC gave up for numerical reasons")
    if cbc.Cbc_isProvenInfeasible(model):
        return {"status": "infeasible", "termination": "infeasible", "bound": math.inf}
    if cbc.Cbc_isContinuousUnbounded(model):
        return {"status": "unbounded", "termination": "the relaxation is unbounded"}
    optimal = bool(cbc.Cbc_isProvenOptimal(model))
    secondary = int(cbc.Cbc_secondaryStatus(model))
    bound = float(cbc.Cbc_getBestPossibleObjValue(model))
    found: dict[str, Any] = {
        "status": "no_solution",
        "termination": SECONDARY.get(secondary, "optimal" if optimal else f"stopped ({secondary})"),
        "bound": bound / scale if abs(bound) < LARGEST / 2 else -math.inf,
        "work": int(cbc.Cbc_getNodeCount(model)),
    }
    if optimal or cbc.Cbc_numberSavedSolutions(model):
        x = _floats(lib, cbc.Cbc_getColSolution(model), program.columns)
        cost = float(program.cost @ x)
        found |= {"status": "optimal" if optimal else "feasible", "x": x, "objective": cost}
        found["bound"] = min(found["bound"], cost)
    return found


def _floats(lib: Library, pointer: Any, n: int) -> Floats:
    """A copy: the memory is CBC's."""
    if not n:
        return np.zeros(0)
    if pointer == lib.ffi.NULL:
        raise SolverError("CBC says that it has a solution and gives none")
    return np.frombuffer(lib.ffi.buffer(pointer, 8 * n), dtype=np.float64).copy()


def _nothing_to_decide(program: Program) -> Solution:
    if ((program.row_lower > 0) | (program.row_upper < 0)).any():
        return Solution(status="infeasible", termination="no variables", bound=math.inf)
    return Solution(status="optimal", termination="no variables", x=np.zeros(0), objective=0.0, bound=0.0)


def build(options: MipOptions) -> MipSolver:
    return MipSolver(options)
