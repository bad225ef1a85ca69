"""A neutral Program as a Pyomo model: one block of variables, one block of rows with entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coral.types.program import Floats, Ints, Program


class Rows(NamedTuple):
    """A by rows: row i has columns `indices[indptr[i]:indptr[i+1]]`."""

    indptr: Ints
    indices: Ints
    data: Floats


def by_rows(program: Program) -> Rows:
    columns = np.repeat(np.arange(program.columns), np.diff(program.indptr))
    order = np.argsort(program.indices, kind="stable")
    counts = np.bincount(program.indices, minlength=program.rows)
    return Rows(np.r_[0, np.cumsum(counts)].astype(np.int64), columns[order], program.data[order])


def kept_rows(program: Program, rows: Rows) -> Ints:
    """Rows that say something: they have entries and a bound. Pyomo takes no others."""
    bounded = np.isfinite(program.row_lower) | np.isfinite(program.row_upper)
    return np.flatnonzero(bounded & (np.diff(rows.indptr) > 0))


def never(program: Program, rows: Rows) -> bool:
    """Whether a row without entries cannot be satisfied."""
    empty = np.diff(rows.indptr) == 0
    return bool((empty & ((program.row_lower > 0) | (program.row_upper < 0))).any())


def pyomo_model(program: Program, start: Floats | None, duals: bool) -> Any:
    """`model.x` are the variables, `model.rows` the kept rows by their index in the program. The model says
    x[0] in its objective where nothing has a cost: Pyomo's writers take no constant."""
    import pyomo.environ as pe
    from pyomo.core.expr.numeric_expr import LinearExpression

    model: Any = pe.ConcreteModel()
    lower, upper = _bounds(program.lower), _bounds(program.upper)
    integral = program.integer.tolist()
    model.x = pe.Var(
        range(program.columns),
        domain=lambda _, j: pe.Integers if integral[j] else pe.Reals,
        bounds=lambda _, j: (lower[j], upper[j]),
    )
    x = [model.x[j] for j in range(program.columns)]
    if start is not None:
        for variable, value in zip(x, start.tolist(), strict=True):
            variable.set_value(round(value) if variable.is_integer() else value, skip_validation=True)
    rows = by_rows(program)
    row_lower, row_upper = _bounds(program.row_lower), _bounds(program.row_upper)

    def row(_: Any, i: int) -> Any:
        at = slice(int(rows.indptr[i]), int(rows.indptr[i + 1]))
        body = LinearExpression(
            constant=0.0,
            linear_coefs=rows.data[at].tolist(),
            linear_vars=[x[j] for j in rows.indices[at].tolist()],
        )
        low, high = row_lower[i], row_upper[i]
        return pe.inequality(low, body, high) if low != high else body == low

    model.rows = pe.Constraint(kept_rows(program, rows).tolist(), rule=row)
    cost = program.cost
    priced = np.flatnonzero(cost).tolist() or [0]
    model.cost = pe.Objective(
        expr=LinearExpression(
            constant=0.0, linear_coefs=cost[priced].tolist(), linear_vars=[x[j] for j in priced]
        ),
        sense=pe.minimize,
    )
    if duals:
        model.dual = pe.Suffix(direction=pe.Suffix.IMPORT)
    return model


def _bounds(values: Floats) -> list[float | None]:
    return [value if abs(value) < np.inf else None for value in values.tolist()]
