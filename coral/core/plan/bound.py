"""A lower bound from any row prices, in float64, owing nothing to the solver that proposed them."""

from __future__ import annotations

import numpy as np

from coral.types.program import Floats, Program


def corrected(program: Program, prices: Floats) -> Floats:
    """Row prices with a sign that the row allows: a price that would count an infinite bound is 0."""
    y = np.array(prices, dtype=np.float64)
    y[(y > 0) & np.isinf(program.row_lower)] = 0.0
    y[(y < 0) & np.isinf(program.row_upper)] = 0.0
    return y


def reduced_costs(program: Program, prices: Floats) -> Floats:
    """c - Aᵀy, shape (columns,)."""
    out = np.array(program.cost, dtype=np.float64)
    some = np.flatnonzero(np.diff(program.indptr))
    if some.size:
        out[some] -= np.add.reduceat(program.data * prices[program.indices], program.indptr[some])
    return out


def lagrangian(program: Program, prices: Floats, reduced: Floats) -> float:
    """min over the bounds of x of c·x + y·(b - A x): at most the cost of every feasible x."""
    finite_lower = np.where(np.isinf(program.row_lower), 0.0, program.row_lower)
    finite_upper = np.where(np.isinf(program.row_upper), 0.0, program.row_upper)
    rows = np.where(prices > 0, prices * finite_lower, prices * finite_upper).sum()
    with np.errstate(invalid="ignore"):
        at_bound = np.where(reduced >= 0, reduced * program.lower, reduced * program.upper)
    at_bound[reduced == 0] = 0.0
    return float(rows + at_bound.sum())
