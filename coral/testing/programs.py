"""Small programs with known optima."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from coral.types.program import Floats, Program

INF = float("inf")


def dense(
    cost: Sequence[float],
    rows: Sequence[Sequence[float]] = (),
    *,
    at_least: Sequence[float] | None = None,
    at_most: Sequence[float] | None = None,
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
    integer: bool | Sequence[bool] = False,
) -> Program:
    """A Program from a dense matrix; variables are >= 0 unless `lower` says otherwise."""
    n, m = len(cost), len(rows)
    matrix = np.array(rows, dtype=np.float64).reshape(m, n)
    indptr, indices, data = [0], [], []
    for j in range(n):
        (found,) = np.nonzero(matrix[:, j])
        indices.extend(found.tolist())
        data.extend(matrix[found, j].tolist())
        indptr.append(len(indices))
    return Program(
        cost=np.array(cost, dtype=np.float64),
        indptr=np.array(indptr, dtype=np.int64),
        indices=np.array(indices, dtype=np.int64),
        data=np.array(data, dtype=np.float64),
        row_lower=np.array(at_least if at_least is not None else [-INF] * m, dtype=np.float64),
        row_upper=np.array(at_most if at_most is not None else [INF] * m, dtype=np.float64),
        lower=np.array(lower if lower is not None else [0.0] * n, dtype=np.float64),
        upper=np.array(upper if upper is not None else [INF] * n, dtype=np.float64),
        integer=np.array([integer] * n if isinstance(integer, bool) else integer, dtype=np.bool_),
    )


def random_covering(seed: int, columns: int = 4, rows: int = 3, most: int = 3) -> Program:
    """An integer covering program over `[0, most]` that `best_by_enumeration` can check."""
    draw = np.random.default_rng(seed)
    matrix = draw.integers(0, 6, (rows, columns)).astype(float)
    reachable = matrix.sum(axis=1) * most
    return dense(
        draw.integers(1, 20, columns).astype(float).tolist(),
        matrix.tolist(),
        at_least=np.floor(reachable * draw.uniform(0.2, 0.8, rows)).tolist(),
        upper=[float(most)] * columns,
        integer=True,
    )


def knapsack(seed: int, items: int) -> Program:
    """Minimise minus the value of what is packed: strongly correlated, so that a proof takes a while."""
    draw = np.random.default_rng(seed)
    weights = draw.integers(1000, 2000, items).astype(float)
    return dense(
        (-(weights + 100)).tolist(),
        [weights.tolist(), (draw.permutation(weights) + 7).tolist()],
        at_most=[weights.sum() / 2 - 0.5, weights.sum() / 2 + 3.5],
        upper=[1.0] * items,
        integer=True,
    )


def market_split(seed: int, rows: int) -> Program:
    """Split 10 (rows - 1) retailers in halves, for `rows` products at once: the least sum of what is off.
    Branch and bound has no grip on it (Cornuéjols and Dawande, 1998): a proof for 5 rows takes hours."""
    draw = np.random.default_rng(seed)
    retailers = 10 * (rows - 1)
    sales = draw.integers(0, 100, (rows, retailers)).astype(float)
    halves = np.floor(sales.sum(axis=1) / 2).tolist()
    slack = np.eye(rows)
    return dense(
        [0.0] * retailers + [1.0] * (2 * rows),
        np.hstack([sales, slack, -slack]).tolist(),
        at_least=halves,
        at_most=halves,
        upper=[1.0] * retailers + [INF] * (2 * rows),
        integer=[True] * retailers + [False] * (2 * rows),
    )


def best_by_enumeration(program: Program) -> float:
    """The optimum of an all-integer program with finite bounds; +inf where it is infeasible."""
    spans = [range(int(a), int(b) + 1) for a, b in zip(program.lower, program.upper, strict=True)]
    best = INF
    for point in itertools.product(*spans):
        x: Floats = np.array(point, dtype=np.float64)
        if program.violation(x) <= 1e-9:
            best = min(best, float(program.cost @ x))
    return best
