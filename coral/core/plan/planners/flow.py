"""Max flow through nodes that each hold a run of layers, as Helix places them (arXiv 2406.01566, §4).

A token goes source → node → … → node → sink. From node i, whose layers end before e_i, it may go on to j
where s_j ≤ e_i < e_j: j then does its layers from e_i on (*partial inference*), and is charged as for all
of them. Node i takes at most T_i tokens/s. Stages that follow on each other are the special case s_j = e_i,
in which the max flow is the least stage's sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from coral.core.plan.budget import Budget
from coral.core.plan.check import solve_checked
from coral.hookspecs.planner import ProgramBuilder
from coral.hookspecs.solver import Solver


class Span(Struct, frozen=True, kw_only=True):
    """A node that holds layers [first_layer, end_layer) and takes `throughput` tokens/s through them."""

    first_layer: int
    end_layer: int
    throughput: float


def max_flow(spans: Sequence[Span], layers: int, solver: Solver, budget: Budget) -> float:
    """tokens/s from source to sink. Raises SolverError where the solver fails."""
    scale = max((span.throughput for span in spans), default=0.0)
    if scale <= 0:
        return 0.0
    builder = ProgramBuilder()
    through = [int(row) for row in builder.rows(len(spans), upper=1.0)]
    balance = [int(row) for row in builder.rows(len(spans), lower=0.0, upper=0.0)]

    def edge(start: int | None, end: int | None) -> None:
        x = builder.variables(1, cost=-1.0 if start is None else 0.0, upper=len(spans))
        if end is not None:
            builder.entries([through[end]], x, scale / max(spans[end].throughput, 1e-12 * scale))
            builder.entries([balance[end]], x, 1.0)
        if start is not None:
            builder.entries([balance[start]], x, -1.0)

    for i, one in enumerate(spans):
        if one.first_layer == 0:
            edge(None, i)
        if one.end_layer == layers:
            edge(i, None)
        for j, other in enumerate(spans):
            if other.first_layer <= one.end_layer < other.end_layer:
                edge(i, j)
    answer = solve_checked(builder.build(), solver, budget)
    return 0.0 if answer.x is None else -answer.cost * scale


def work_bound(best: Sequence[float], layers: int) -> float:
    """No placement does more: every token takes each layer once, and a node does at most `best` layers of
    tokens a second, max_j j·T̂_j."""
    return sum(best) / layers
