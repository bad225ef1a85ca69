"""The largest multiple of a demand that supply can serve, by the linear relaxation of the paper's allocation.

    max λ    Σ_τ U_c(τ) ν_τr ≤ A_r(c)    Σ_τr T(τ)/d_m ν_τr ≥ λ    ν ≥ 0

by column generation: templates are priced with the duals of the supply and demand rows until none improves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np
from coral_solver_highs.banner import silenced_stdout

from coral.core.plan.services import needs
from coral.hookspecs.planner import Library, PlanOptions, View
from coral.types.hardware import Domain
from coral.types.model import ModelSpec
from coral.types.program import Floats, Ints

ENTERING = 60
"""Columns of one (service, domain) that may enter in one round."""
Whole = tuple[Domain, str, int]
"""A machine as a node: domain, GPU, count."""


class Servable:
    """Columns found for one supply are kept for the next."""

    def __init__(self, specs: Sequence[ModelSpec], library: Library, machines: Sequence[Whole]) -> None:
        """A node is a whole machine of `machines`; templates that need others are left out."""
        options = PlanOptions(target_utilization=1.0, slices=False, couple_phases=False)
        wanted = needs(View(models=tuple(specs), offers=(), options=options))
        rows = {machine: index for index, machine in enumerate(machines)}
        self._supply = len(machines)
        self._blocks: list[_Block] = []
        for service, need in enumerate(wanted):
            table = library.table(need.name, need.phase)
            for domain in sorted({machine[0] for machine in machines}):
                at = np.array([rows.get((domain, kind.gpu, kind.count), -1) for kind in table.node_types])
                able = table.irreducible & (table.usage[:, at < 0] == 0).all(axis=1)
                usage = table.usage[able][:, at >= 0].astype(np.float64)
                rate = table.throughput[able] / need.demand
                self._blocks.append(_Block(service, at[at >= 0], usage, rate))
        self._highs = _master(self._supply, len(wanted))

    def multiple(self, obtainable: Floats) -> float:
        """λ for `obtainable[i]`, a real number, of machine i."""
        for row, limit in enumerate(obtainable):
            self._highs.changeRowBounds(row, -highspy.kHighsInf, float(limit))
        while True:
            self._highs.run()
            dual = np.array(self._highs.getSolution().row_dual)
            if not sum(self._enter(block, dual) for block in self._blocks):
                return float(-self._highs.getInfo().objective_function_value)

    def _enter(self, block: _Block, dual: Floats) -> int:
        """Add the best of a block's columns that would improve the relaxation; how many."""
        if not len(block.rate):
            return 0
        gain = dual[self._supply + block.service] * block.rate + block.usage @ dual[block.at]
        good = np.flatnonzero((gain > 1e-9) & ~block.inside)
        good = good[np.argsort(-gain[good])][:ENTERING]
        block.inside[good] = True
        for line in good:
            used = np.flatnonzero(block.usage[line])
            self._highs.addCol(
                0.0,
                0.0,
                highspy.kHighsInf,
                len(used) + 1,
                np.r_[block.at[used], self._supply + block.service].astype(np.int32),
                np.r_[block.usage[line, used], block.rate[line]],
            )
        return len(good)


class _Block:
    """Templates of one service in one domain: rows of their node types, nodes, and share of the demand."""

    def __init__(self, service: int, at: Ints, usage: Floats, rate: Floats) -> None:
        self.service, self.at, self.usage, self.rate = service, at, usage, rate
        self.inside = np.zeros(len(rate), dtype=bool)


def _master(machines: int, services: int) -> Any:
    """Rows only, and λ: minimise -λ."""
    constructor: Any = highspy.Highs  # highspy is annotated in part
    with silenced_stdout():
        highs = constructor()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)  # HiGHS has one pool of threads a process: as the solver plugin's
    infinity = highspy.kHighsInf
    for _ in range(machines):
        highs.addRow(-infinity, 0.0, 0, [], [])
    for _ in range(services):
        highs.addRow(0.0, infinity, 0, [], [])
    at = np.arange(machines, machines + services, dtype=np.int32)
    highs.addCol(-1.0, 0.0, infinity, services, at, -np.ones(services))
    return highs
