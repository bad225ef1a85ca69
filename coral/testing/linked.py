"""Random programs of the allocation's kind: demand rows over many columns, supply rows that link them."""

from __future__ import annotations

import numpy as np

from coral.hookspecs.planner import ProgramBuilder
from coral.types.program import Program


def linked_covers(
    seed: int,
    *,
    rows: int = 3,
    supplies: int = 4,
    columns: int = 16,
    machines: bool = False,
    limited: bool = False,
    survival: bool = False,
    parts: bool = False,
    small: float = 1.0,
    scarce: float = 1.0,
) -> Program:
    """`machines`: supply is bought in integral lots; `limited`: columns may be used once or twice;
    `survival`: half of every demand must be served also without the first half of its columns; `parts`: a
    demand is served in two parts, each by two kinds of columns together; `small`: what a column serves, and
    how much more of everything there is."""
    draw = np.random.default_rng(seed)
    builder = ProgramBuilder()
    usage = draw.integers(0, 4, (rows * columns, supplies)) * (draw.random((rows * columns, supplies)) < 0.5)
    usage[np.arange(rows * columns), draw.integers(0, supplies, rows * columns)] += 1
    price = draw.uniform(1, 5, supplies)
    cost = usage @ price * (0.1 if machines else 1.0) * draw.uniform(0.95, 1.05, rows * columns)
    share = np.minimum(
        (usage @ price) ** draw.uniform(0.8, 1.1) * draw.uniform(0.02, 0.1, rows * columns) * small, 1.0
    )
    upper = draw.integers(1, 3, rows * columns).astype(float) if limited else np.ceil(1 / share)
    nu = builder.variables(rows * columns, cost=np.round(cost, 3), upper=upper, integer=True)
    room = np.ceil(scarce / small * draw.integers(3, 14, supplies))
    supply = builder.rows(supplies, upper=0.0 if machines else room)
    for at in range(supplies):
        users = np.flatnonzero(usage[:, at])
        builder.entries(supply[at], nu[users], usage[users, at])
        if machines:
            lot = builder.variables(1, cost=3 * price[at], upper=room[at], integer=True)
            builder.entries(supply[at], lot, -3.0)
    fixed = builder.variables(1, lower=1.0, upper=1.0)
    for row in range(rows):
        own = np.arange(row * columns, (row + 1) * columns)
        if parts:
            cells = builder.variables(2, upper=1.0)
            total = builder.rows(1, lower=0.0)
            builder.entries(total, cells, 1.0)
            builder.entries(total, fixed, -1.0)
            for kind in range(4):
                strand = builder.rows(1, lower=0.0)
                builder.entries(strand, nu[own[kind::4]], np.minimum(4 * share[own[kind::4]], 1.0))
                builder.entries(strand, [cells[kind // 2]], -1.0)
            continue
        demand = builder.rows(1, lower=0.0)
        builder.entries(demand, nu[own], share[own])
        builder.entries(demand, fixed, -1.0)
        if survival:
            half = own[columns // 2 :]
            builder.entries(builder.rows(1, lower=0.5), nu[half], share[half])
    return builder.build()
