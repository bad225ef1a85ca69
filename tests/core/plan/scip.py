"""SCIP on a neutral program, for tests only."""

from __future__ import annotations

import pytest

from coral.types.program import Program


def least_by_scip(program: Program) -> float | None:
    """The optimum, or None where there is no solution. Skips the test where SCIP is not installed."""
    scip = pytest.importorskip("pyscipopt", reason="pyscipopt is not installed")
    model = scip.Model()
    model.hideOutput()
    model.setParam("limits/gap", 0.0)
    x = [
        model.addVar(
            vtype="I" if program.integer[j] else "C",
            lb=float(program.lower[j]),
            ub=None if program.upper[j] == float("inf") else float(program.upper[j]),
            obj=float(program.cost[j]),
        )
        for j in range(program.columns)
    ]
    terms: list[list[object]] = [[] for _ in range(program.rows)]
    for j in range(program.columns):
        for k in range(program.indptr[j], program.indptr[j + 1]):
            terms[program.indices[k]].append(float(program.data[k]) * x[j])
    for i, some in enumerate(terms):
        low, up = float(program.row_lower[i]), float(program.row_upper[i])
        row = scip.quicksum(some)
        if low > float("-inf"):
            model.addCons(row >= low)
        if up < float("inf"):
            model.addCons(row <= up)
    model.optimize()
    return float(model.getObjVal()) if model.getStatus() == "optimal" else None
