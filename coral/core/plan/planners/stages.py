"""Helix's placement as a mixed-integer program, its layers cut at stages.

Helix (arXiv 2406.01566, §4.4) gives every node a first layer s_i, one of b_ij (it holds j layers), and a flow
f over edges that its layers make valid; the objective is the flow. Here nodes hold the same layers in a
stage, so edges are valid between neighbouring stages alone, flows collapse to the least stage, and nodes of
a type are counted instead of named::

    max t     Σ_j y_sj = 1      Σ_sj j·y_sj = L                 S stages, stage s holds j layers
              n_skj ≤ N_k·y_sj  Σ_sj n_skj ≤ N_k                nodes of type k in stage s
              t ≤ Σ_kj T̂_kj(role of s) n_skj                    per stage

A node may stay out (Helix places every node). Stages between the first and the last are alike, so they are
ordered by their layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from msgspec import Struct

from coral.core.generate.layers import roles_of
from coral.core.plan.budget import Budget
from coral.core.plan.check import solve_checked
from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.hookspecs.planner import ProgramBuilder
from coral.hookspecs.solver import Solver
from coral.types.placement import Placement, Stage, StageNode
from coral.types.program import Floats


class Staged(Struct, frozen=True, kw_only=True, eq=False):
    """`layers[s]` of each stage; `nodes[s][k]` of each type; `flow` tokens/s and a bound on it."""

    layers: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    flow: float
    bound: float


def flow_bound(table: ThroughputTable, stages: int, available: Mapping[int, int]) -> float:
    """No S stages do more: Σ N_k max_j j·T̂_kj / L."""
    held = np.arange(1, table.layers + 1)[:, None]
    best = (table.rate[stages - 1] * held).max(axis=(0, 1))
    return float(sum(best[kind] * count for kind, count in available.items())) / table.layers


def best_stages(
    table: ThroughputTable,
    stages: int,
    available: Mapping[int, int],
    solver: Solver,
    budget: Budget,
    *,
    above: float = 0.0,
) -> Staged | None:
    """The greatest flow of so many stages over `available[k]` nodes of type k; None where there is none
    above `above`, or none was found in time. Raises SolverError where the solver fails."""
    kinds = [kind for kind, count in sorted(available.items()) if count > 0]
    limit = flow_bound(table, stages, available)
    layers = table.layers
    if not kinds or stages > min(layers, sum(available.values())) or limit <= above:
        return None
    rates = [table.rate[stages - 1, ROLES.index(role)] / limit for role in roles_of(stages)]
    builder = ProgramBuilder()
    t = builder.variables(1, cost=-1.0, lower=above / limit, upper=1.0)
    total = builder.rows(1, lower=layers, upper=layers)
    used = {kind: builder.rows(1, upper=available[kind]) for kind in kinds}
    held, counts = [], []
    for rate in rates:
        y = builder.variables(layers, upper=1.0, integer=True)
        held.append(y)
        builder.entries(builder.rows(1, lower=1.0, upper=1.0), y, 1.0)
        builder.entries(np.repeat(total, layers), y, np.arange(1.0, layers + 1))
        serve = builder.rows(1, lower=0.0)
        builder.entries(serve, t, -1.0)
        own = {}
        for kind in kinds:
            able = np.flatnonzero(rate[:, kind] > 0)
            n = builder.variables(len(able), upper=available[kind], integer=True)
            own[kind] = (able, n)
            builder.entries(np.repeat(used[kind], len(able)), n, 1.0)
            builder.entries(np.repeat(serve, len(able)), n, rate[able, kind])
            linked = builder.rows(len(able), upper=0.0)
            builder.entries(linked, n, 1.0)
            builder.entries(linked, y[able], -float(available[kind]))
        counts.append(own)
    for before, after in pairwise(held[1:-1]):
        row = builder.rows(1, lower=0.0)
        builder.entries(np.repeat(row, layers), before, np.arange(1.0, layers + 1))
        builder.entries(np.repeat(row, layers), after, -np.arange(1.0, layers + 1))
    answer = solve_checked(builder.build(), solver, budget)
    if answer.x is None:
        return None
    x = answer.x
    cut = tuple(int(np.argmax(x[y])) + 1 for y in held)
    nodes = tuple(
        tuple(
            round(float(x[own[kind][1]].sum())) if kind in own else 0 for kind in range(len(table.node_types))
        )
        for own in counts
    )
    flow = limit * min(
        float(rate[j - 1] @ np.array(some, dtype=np.float64))
        for rate, j, some in zip(rates, cut, nodes, strict=True)
    )
    if flow <= above:
        return None
    bound = limit * min(-answer.bound if math.isfinite(answer.bound) else 1.0, 1.0)
    return Staged(layers=cut, nodes=nodes, flow=flow, bound=max(bound, flow))


def without_idle(table: ThroughputTable, found: Staged, prices: Floats, enough: float) -> Staged:
    """Without the nodes that a flow of min(flow, enough) does not need, the dearest first."""
    rates = _stage_rates(table, found)
    keep = min(found.flow, enough) * (1 - 1e-9)
    nodes = [list(some) for some in found.nodes]
    for kind in np.argsort(-prices, kind="stable"):
        for rate, some in zip(rates, nodes, strict=True):
            while some[kind] > 0 and sum(some) > 1:
                some[kind] -= 1
                if float(rate @ np.array(some, dtype=np.float64)) < keep:
                    some[kind] += 1
                    break
    flow = min(
        float(rate @ np.array(some, dtype=np.float64)) for rate, some in zip(rates, nodes, strict=True)
    )
    return Staged(
        layers=found.layers, nodes=tuple(tuple(some) for some in nodes), flow=flow, bound=found.bound
    )


def placed(table: ThroughputTable, found: Staged) -> Placement:
    """The stages with every node's weight."""
    out: list[Stage] = []
    first = 0
    for role, layers, nodes in zip(roles_of(len(found.layers)), found.layers, found.nodes, strict=True):
        at = (len(found.layers) - 1, ROLES.index(role), layers - 1)
        members = tuple(
            StageNode(
                node_type=table.node_types[kind],
                throughput=float(table.rate[at][kind]),
                tp=int(table.tp[at][kind]),
            )
            for kind, count in enumerate(nodes)
            for _ in range(count)
        )
        out.append(Stage(first_layer=first, end_layer=first + layers, nodes=members))
        first += layers
    return Placement(stages=tuple(out))


def _stage_rates(table: ThroughputTable, found: Staged) -> list[Floats]:
    stages = len(found.layers)
    return [
        table.rate[stages - 1, ROLES.index(role), layers - 1]
        for role, layers in zip(roles_of(stages), found.layers, strict=True)
    ]
