"""A neutral sparse mixed-integer linear program, and what a solver says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no_solution", "error"]
"""`feasible`: a limit was met with an incumbent, a normal result. `no_solution`: a limit, and none."""


class Program(Struct, frozen=True, kw_only=True, eq=False):
    """minimise cost·x  s.t.  row_lower <= A x <= row_upper, lower <= x <= upper, x[integer] integral.

    A is compressed by column: column j has rows `indices[indptr[j]:indptr[j+1]]`. Shapes: n columns,
    m rows, k entries. Infinite bounds are ±inf. `names`, if given, has n strings and is for people.
    """

    cost: Floats
    indptr: Ints
    indices: Ints
    data: Floats
    row_lower: Floats
    row_upper: Floats
    lower: Floats
    upper: Floats
    integer: NDArray[np.bool_]
    names: tuple[str, ...] = ()

    @property
    def columns(self) -> int:
        return len(self.cost)

    @property
    def rows(self) -> int:
        return len(self.row_lower)

    def activity(self, x: Floats) -> Floats:
        """A x, in float64."""
        out = np.zeros(self.rows)
        column = np.repeat(np.arange(self.columns), np.diff(self.indptr))
        np.add.at(out, self.indices, self.data * x[column])
        return out

    def violation(self, x: Floats) -> float:
        """The largest absolute violation of a row, bound or integrality by x."""
        a = self.activity(x)
        excesses = (
            self.row_lower - a,
            a - self.row_upper,
            self.lower - x,
            x - self.upper,
            np.abs(x - np.round(x))[self.integer],
        )
        return max([0.0, *(float(excess.max()) for excess in excesses if excess.size)])


class Solution(Struct, frozen=True, kw_only=True, eq=False):
    """What a solver says. Core never trusts it: cost and feasibility are recomputed from x."""

    status: Status
    termination: str
    x: Floats | None = None
    objective: float = float("nan")
    bound: float = float("-inf")
    row_duals: Floats | None = None
    """For continuous programs: d objective / d row bound."""
    work: int = 0
    seconds: float = 0.0
    failure: str = ""
    """What ended the solver itself, where x is only the last that it told of; a limit is none."""


class SolverFeatures(Struct, frozen=True, kw_only=True):
    """What a solver can do, and what it may do to its process."""

    integer: bool
    duals: bool
    start: bool
    deterministic_work_limit: bool
    may_abort_process: bool = False
    incumbents: bool = False
    """Whether `solve` takes `on_incumbent` (`coral.hookspecs.solver.IncumbentSolver`)."""


class NonlinearProgram(Struct, frozen=True, kw_only=True, eq=False):
    """minimise f(x)  s.t.  row_lower <= g(x) <= row_upper, lower <= x <= upper; x continuous.

    `start` (n,) is where the search begins; `jacobian(x)` is dense, (m, n). f and g need be smooth only
    where x is within its bounds. Infinite bounds are ±inf.
    """

    start: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats
    objective: Callable[[Floats], float]
    gradient: Callable[[Floats], Floats]
    rows: Callable[[Floats], Floats]
    jacobian: Callable[[Floats], Floats]
