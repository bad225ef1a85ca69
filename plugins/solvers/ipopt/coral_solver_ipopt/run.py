"""One run of Ipopt on functions: limits, what it says at its end, and what a function raised on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from msgspec import Struct

from coral.errors import SolverError
from coral.types.program import Floats, Ints

if TYPE_CHECKING:
    from coral_solver_ipopt.options import IpoptOptions

SOLVED, ACCEPTABLE, FEASIBLE_POINT = 0, 1, 6
INFEASIBLE, DIVERGES, STOPPED = 2, 4, 5
LIMITS = {-1: "limit of iterations", -4: "time limit", STOPPED: "time limit"}
NOT_A_NUMBER = -13
INFINITY = 1e20
"""Bounds from here on are none to Ipopt."""


class Functions(Protocol):
    """minimise f(x) s.t. bounds on g(x): what cyipopt calls. `structure` is of the Jacobian, (rows, columns);
    `hessian` None where it is to be approximated."""

    def objective(self, x: Floats) -> float: ...

    def gradient(self, x: Floats) -> Floats: ...

    def constraints(self, x: Floats) -> Floats: ...

    def jacobian(self, x: Floats) -> Floats: ...

    def jacobianstructure(self) -> tuple[Ints, Ints]: ...


class Ended(Struct, frozen=True, kw_only=True, eq=False):
    """`multipliers` of g, as Ipopt signs them: f + multipliers · g is stationary."""

    code: int
    message: str
    x: Floats
    multipliers: Floats
    iterations: int


class _Watched:
    """The functions as cyipopt calls them, through C: nothing may be raised there, so the first exception is
    kept and the solve ended; and the clock is looked at after each iteration (Ipopt before 3.14 counts
    processor time only)."""

    def __init__(self, functions: Functions, deadline: float) -> None:
        self._functions = functions
        self._deadline = deadline
        self.error: Exception | None = None
        self.iterations = 0
        self.objective = self._kept(functions.objective)
        self.gradient = self._kept(functions.gradient)
        self.constraints = self._kept(functions.constraints)
        self.jacobian = self._kept(functions.jacobian)
        self.jacobianstructure = functions.jacobianstructure
        for name in ("hessian", "hessianstructure"):
            if hasattr(functions, name):
                setattr(self, name, getattr(functions, name))

    def _kept(self, function: Callable[[Floats], Any]) -> Callable[[Floats], Any]:
        def call(x: Floats) -> Any:
            try:
                return function(x)
            except Exception as error:
                self.error = self.error or error
                raise

        return call

    def intermediate(self, mode: int, iteration: int, *_: float) -> bool:
        self.iterations = iteration
        return self.error is None and time.monotonic() < self._deadline


def run(
    functions: Functions,
    options: IpoptOptions,
    *,
    start: Floats,
    lower: Floats,
    upper: Floats,
    row_lower: Floats,
    row_upper: Floats,
    work_limit: int | None,
    time_limit_s: float | None,
    more: dict[str, int | float | str],
) -> Ended:
    """Raises SolverError where a function raises, or Ipopt refuses an option or the problem."""
    import cyipopt

    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    watched = _Watched(functions, deadline)
    settings: dict[str, int | float | str] = {
        "print_level": 5 if options.log else 0,
        "sb": "yes",
        "tol": options.tolerance,
        "max_iter": options.max_iterations if work_limit is None else max(0, work_limit),
        **more,
        **options.solver_options,
    }
    try:
        problem = cyipopt.Problem(
            n=len(start),
            m=len(row_lower),
            problem_obj=watched,
            lb=np.clip(lower, -INFINITY, INFINITY),
            ub=np.clip(upper, -INFINITY, INFINITY),
            cl=np.clip(row_lower, -INFINITY, INFINITY),
            cu=np.clip(row_upper, -INFINITY, INFINITY),
        )
        for name, value in settings.items():
            _set(problem, name, value)
        x, info = problem.solve(np.array(start, dtype=np.float64))
    except SolverError:
        raise
    except Exception as error:
        cause = watched.error or error
        raise SolverError(f"Ipopt failed: {type(cause).__name__}: {cause}") from cause
    if watched.error is not None:
        raise SolverError(f"Ipopt failed: {type(watched.error).__name__}: {watched.error}") from watched.error
    message = info["status_msg"]
    return Ended(
        code=int(info["status"]),
        message=message.decode() if isinstance(message, bytes) else str(message),
        x=np.array(x, dtype=np.float64),
        multipliers=np.array(info["mult_g"], dtype=np.float64),
        iterations=watched.iterations,
    )


def _set(problem: Any, name: str, value: float | str) -> None:
    try:
        problem.add_option(name, value)
    except TypeError as error:
        raise SolverError(
            f"Ipopt takes no option {name}={value!r}", mend="look at `solver_options`, and Ipopt's own manual"
        ) from error
