"""A NonlinearProgram as functions with a dense Jacobian; second derivatives are approximated."""

from __future__ import annotations

import numpy as np

from coral.types.program import Floats, Ints, NonlinearProgram


class NonlinearFunctions:
    def __init__(self, program: NonlinearProgram) -> None:
        self._program = program
        self._shape = (len(program.row_lower), len(program.start))

    def objective(self, x: Floats) -> float:
        return float(self._program.objective(x))

    def gradient(self, x: Floats) -> Floats:
        return np.asarray(self._program.gradient(x), dtype=np.float64)

    def constraints(self, x: Floats) -> Floats:
        return np.asarray(self._program.rows(x), dtype=np.float64)

    def jacobian(self, x: Floats) -> Floats:
        dense = np.asarray(self._program.jacobian(x), dtype=np.float64)
        return dense.reshape(self._shape).ravel()

    def jacobianstructure(self) -> tuple[Ints, Ints]:
        rows, columns = np.indices(self._shape)
        return rows.ravel(), columns.ravel()
