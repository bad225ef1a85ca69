"""A continuous Program as functions: constant derivatives, no second ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from coral.types.program import Floats, Ints, Program

OPTIONS: dict[str, int | float | str] = {
    "jac_c_constant": "yes",
    "jac_d_constant": "yes",
    "hessian_constant": "yes",
    "diverging_iterates_tol": 1e10,
}
"""What Ipopt may know of a linear program; one whose iterates grow so large is called unbounded."""


class LinearFunctions:
    """`rows` are those of the program that have entries and a bound; costs are times `scale`."""

    def __init__(self, program: Program, rows: Ints, scale: float) -> None:
        self._cost = program.cost * scale
        number = np.full(program.rows, -1)
        number[rows] = np.arange(len(rows))
        columns = np.repeat(np.arange(program.columns), np.diff(program.indptr))
        kept = number[program.indices] >= 0
        self._row, self._column = number[program.indices][kept], columns[kept]
        self._data = program.data[kept]
        self._rows = len(rows)

    def objective(self, x: Floats) -> float:
        return float(self._cost @ x)

    def gradient(self, x: Floats) -> Floats:
        return self._cost

    def constraints(self, x: Floats) -> Floats:
        terms = self._data * x[self._column]
        return np.bincount(self._row, weights=terms, minlength=self._rows).astype(np.float64)

    def jacobian(self, x: Floats) -> Floats:
        return self._data

    def jacobianstructure(self) -> tuple[Ints, Ints]:
        return self._row, self._column

    def hessian(self, x: Floats, multipliers: Floats, factor: float) -> Floats:
        return np.zeros(0)

    def hessianstructure(self) -> tuple[Any, Any]:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
