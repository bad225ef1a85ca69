"""What limits are called at each solver: Pyomo passes options through by the solver's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from coral_solver_pyomo.options import LimitOptions, Value


class Dialect(Struct, frozen=True, kw_only=True):
    """`time`: an option that takes seconds, or None where Pyomo's own `timelimit` does it. The others:
    None where the solver has no such limit, or it is not known."""

    time: str | None = None
    timelimit: bool = True
    """Whether Pyomo's `timelimit` argument reaches the solver."""
    gap: str | None = None
    nodes: str | None = None
    iterations: str | None = None
    whole_seconds: bool = False
    always: Mapping[str, Value] = {}
    """Options of every solve: one thread, wall time, absolute gap 0."""
    duals: bool = False
    start: bool = False
    feasible_at_gap: bool = False
    """Calls an answer `feasible` that is within the gap, as one at a time limit, and tells no bound."""

    unsettled: tuple[str, ...] = ("infeasibleOrUnbounded",)
    """Termination conditions that leave open whether a program is infeasible or unbounded."""

    @property
    def work(self) -> bool:
        return self.nodes is not None


HIGHS = Dialect(
    gap="mip_rel_gap",
    nodes="mip_max_nodes",
    iterations="simplex_iteration_limit",
    always={"threads": 1},
    duals=True,
    start=True,
)
CBC = Dialect(
    gap="ratioGap",
    nodes="maxNodes",
    iterations="maxIterations",
    always={"timeMode": "elapsed", "allowableGap": 0.0},
    duals=True,
    start=True,
)
GLPK = Dialect(
    gap="mipgap",
    whole_seconds=True,
    duals=True,
    feasible_at_gap=True,
    # Pyomo 6.10 reads "no primal feasible solution" of a linear program as unbounded, and says "other" where
    # GLPK's presolve found one or the other.
    unsettled=("infeasibleOrUnbounded", "unbounded", "other"),
)
GUROBI = Dialect(
    time="TimeLimit",
    timelimit=False,
    gap="MIPGap",
    nodes="NodeLimit",
    iterations="IterationLimit",
    always={"Threads": 1},
    duals=True,
)
SCIP = Dialect(time="limits/time", timelimit=False, gap="limits/gap", nodes="limits/nodes")
CPLEX = Dialect(
    time="timelimit",
    timelimit=False,
    gap="mip_tolerances_mipgap",
    nodes="mip_limits_nodes",
    iterations="simplex_limits_iterations",
    always={"threads": 1},
    duals=True,
)

DIALECTS = {
    "appsi_highs": HIGHS,
    "cbc": CBC,
    "glpk": GLPK,
    "gurobi": GUROBI,
    "gurobi_direct": GUROBI,
    "gurobi_persistent": GUROBI,
    "scip": SCIP,
    "cplex": CPLEX,
    "cplex_direct": CPLEX,
    "cplex_persistent": CPLEX,
}
"""`appsi_highs`, `cbc` and `glpk` are tested; the others are as the solvers' manuals have it."""


def dialect(solver: str, names: LimitOptions) -> Dialect:
    """The solver's dialect, with the names that the config gives in place of what is known."""
    known = DIALECTS.get(solver, Dialect(timelimit=False))
    given = {key: value for key, value in names.model_dump().items() if value is not None}
    return replace(known, **given)
