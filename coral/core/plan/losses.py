"""What is still served when any one machine is lost (N-1), by linear rows that hold however nodes are packed.

Losing a machine loses every instance with a node on it. Machines are shared, and a plan does not say
which nodes sit together, so the most that a machine of G GPUs of a site can take along is counted, per
service::

    loss  =  max Σ_τ T(τ) m_τ     Σ_τ k_τ m_τ ≤ G,  0 ≤ m_τ ≤ ν_τ     k_τ: τ's smallest node that fits there
          =  min over μ ≥ 0 of    G μ + Σ_τ (T(τ) - k_τ μ)⁺ ν_τ             (duality)

so that Σ T ν - loss ≥ y holds iff for some μ::

    Σ_τ min(T(τ), k_τ μ) ν_τ  ≥  y + G μ          with T(τ) for columns that cannot be there

a row with its own cut of T for each μ; a binary z_μ says which one is to hold. The best μ is 0 or one of
the T/k, so with all of them the rows are exact for the relaxed loss; where there are more than `MOST`,
that many of them spread over their range are kept: safe, and a little dearer, and a plan's bound is then one
over plans that keep these rows. Where nodes are whole machines (k = G) the relaxed loss is the loss: the
largest T that runs, of one instance alone, so each cell is lost from while the others are whole. With slices
it is an upper bound: several services of a domain are each counted with all of the machine, and the knapsack
is relaxed. z_0 says that there is no such machine (N = 0).

Reductions. T is cut at q d before all else (d): what survives is at least q d iff that of min(T, q d) is.
k_A, k_B ≥ k_τ for the parts of a split template, so min(T, kμ) of the parts is at least that of the whole
(a). More than ⌈d/T⌉ instances of a column may be needed, so that bound is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from coral.core.plan.draft import Draft
from coral.core.plan.hosting import is_power_of_two
from coral.core.plan.problem import Problem
from coral.core.plan.serving import Cell
from coral.core.plan.survival import Promise, Scenario
from coral.types.program import Floats, Ints

MOST = 12
FEW = 3
LARGE = 1000
"""Levels of μ, at most; in problems of more than `LARGE` columns a `FEW`, since each is a row and a binary
for every service and kind of machine."""


class MachineKind(Struct, frozen=True, kw_only=True, order=True):
    """Machines of a site that take as much along when they are lost."""

    site: int
    gpu: str
    gpus: int


class Way(Struct, frozen=True, kw_only=True, eq=False):
    """One μ: `y` is what is left by it, in shares of the demand, where `z` is 1.

    `able` (lines,): min(T, kμ)/d, with T at most q d; `lost`: Gμ/d.
    """

    y: int
    z: int
    able: Floats
    lost: float


class Rest(Struct, frozen=True, kw_only=True, eq=False):
    """What one service still does: Σ y. `ways[0]`: no such machine is there, or it takes nothing along."""

    lines: Ints
    ways: tuple[Way, ...]
    capacity: int
    most: float

    def settle(self, counts: Floats, present: bool, x: Floats) -> float:
        """Write the way that leaves most into x, and return what it leaves."""
        ways = self.ways[1:] if present and len(self.ways) > 1 else self.ways[:1]
        values = [min(self.most, float(way.able @ counts[self.lines]) - way.lost) for way in ways]
        best = int(np.argmax(values))
        x[self.capacity] = float(self.ways[0].able @ counts[self.lines])
        if values[best] <= 0:
            return 0.0
        x[ways[best].z], x[ways[best].y] = 1.0, values[best]
        return values[best]


class Endured(Struct, frozen=True, kw_only=True, eq=False):
    """A part of a demand after the loss of a machine of a kind: each of its services does x[column]."""

    kind: MachineKind
    column: int
    rests: tuple[Rest, ...]


def kinds_of(problem: Problem) -> list[MachineKind]:
    return sorted(
        {
            MachineKind(site=index, gpu=lot.gpu, gpus=lot.gpus)
            for index, site in enumerate(problem.sites)
            for lot in (*site.lots, *site.shaped)
        }
    )


def least_nodes(problem: Problem, kind: MachineKind) -> Floats:
    """(columns,): k_τ, GPUs of the smallest node that such a machine may hold; 0 where it holds none."""
    slices = problem.view.options.slices
    columns = problem.columns
    out = np.zeros(len(columns))
    for at, node in sorted(enumerate(problem.node_types), key=lambda one: -one[1].count):
        shared = slices and is_power_of_two(node.count)
        if node.gpu == kind.gpu and (node.count <= kind.gpus if shared else node.count == kind.gpus):
            out[(columns.domain == kind.site) & (columns.usage[:, at] > 0)] = float(node.count)
    return out


class _Service(Struct, frozen=True, kw_only=True, eq=False):
    """A service of a cell: min(T/d, q) of its lines, and the column of Σ min(T/d, q) ν."""

    service: int
    model: int
    lines: Ints
    rate: Floats
    capacity: int


class Endurance:
    """Adds the rows of promises against the loss of any one machine.

    `machines`: by kind the columns of its N and the most of each.
    """

    def __init__(
        self,
        draft: Draft,
        problem: Problem,
        nu: Ints,
        machines: Mapping[MachineKind, Sequence[tuple[int, int]]],
    ) -> None:
        self._draft, self._problem, self._nu, self._machines = draft, problem, nu, machines
        self._least = {kind: least_nodes(problem, kind) for kind in sorted(machines)}

    def add(self, promise: Promise, base: Sequence[Cell]) -> tuple[list[Endured], list[Scenario]]:
        """`base`: the cells of the model's demand."""
        services = [self._services(cell, promise.share) for cell in base]
        found: list[Endured] = []
        scenarios: list[Scenario] = []
        together = self._problem.view.options.slices
        for kind, least in self._least.items():
            whole = [cell.column for cell in base]
            left = list(whole)
            for at, (cell, own) in enumerate(zip(base, services, strict=True)):
                if any((least[lines] > 0).any() for lines in cell.lines):
                    endured = self._endured(promise, kind, least, own)
                    found.append(endured)
                    left[at] = endured.column
            hit = [at for at in range(len(base)) if left[at] != whole[at]]
            for some in [hit] if together and hit else [[at] for at in hit]:
                columns = [left[at] if at in some else whole[at] for at in range(len(base))]
                row = self._draft.rows("machine", 1, lower=0.0, site=kind.site, model=promise.model)
                self._draft.builder.entries(row, columns, 1.0)
                self._draft.builder.entries(row, [promise.column], -promise.share)
                scenarios.append(Scenario(promise=promise, columns=tuple(columns)))
        return found, scenarios

    def _services(self, cell: Cell, share: float) -> list[_Service]:
        found = []
        for service, lines in zip(cell.services, cell.lines, strict=True):
            rate = self._problem.columns.throughput[lines] / self._problem.needs[service].demand
            rate = np.minimum(rate, share)
            capacity = int(self._draft.builder.variables(1)[0])
            row = self._draft.rows("machine", 1, lower=0.0, service=service, model=cell.model)
            self._draft.builder.entries(row, self._nu[lines], rate)
            self._draft.builder.entries(row, [capacity], -1.0)
            found.append(
                _Service(service=service, model=cell.model, lines=lines, rate=rate, capacity=capacity)
            )
        return found

    def _endured(
        self, promise: Promise, kind: MachineKind, least: Floats, own: Sequence[_Service]
    ) -> Endured:
        column = int(self._draft.builder.variables(1, upper=promise.share)[0])
        rests = []
        for one in own:
            rest = self._rest(promise, kind, least[one.lines], one)
            row = self._draft.rows(
                "machine", 1, lower=0.0, site=kind.site, service=one.service, model=one.model
            )
            self._draft.builder.entries(row, [way.y for way in rest.ways], 1.0)
            self._draft.builder.entries(row, [column], -1.0)
            rests.append(rest)
        return Endured(kind=kind, column=column, rests=tuple(rests))

    def _rest(self, promise: Promise, kind: MachineKind, least: Floats, one: _Service) -> Rest:
        """The ways of one service; the rows are C - Σ (T - min(T, kμ))/d ν - Gμ/d z ≥ y,  y ≤ q z."""
        builder, most = self._draft.builder, promise.share
        large = len(self._problem.columns) > LARGE
        levels = _levels(one.rate, least, FEW if large else MOST)
        ways = [self._way(one.rate, 0.0, most)]
        for level in levels:
            able = np.where(least > 0, np.minimum(one.rate, least * level), one.rate)
            ways.append(self._way(able, kind.gpus * level, most))
        for way in ways:
            rows = self._draft.rows(
                "machine", 2, lower=0.0, site=kind.site, service=one.service, model=one.model
            )
            builder.entries(rows[0], [one.capacity, way.y, way.z], [1.0, -1.0, -way.lost])
            cut = np.flatnonzero(way.able < one.rate)
            builder.entries(rows[0], self._nu[one.lines[cut]], way.able[cut] - one.rate[cut])
            builder.entries(rows[1], [way.z, way.y], [most, -1.0])
        if levels.size:
            rows = self._draft.rows(
                "machine", 1, upper=1.0, site=kind.site, service=one.service, model=one.model
            )
            builder.entries(rows, [way.z for way in ways], 1.0)
            for column, limit in self._machines[kind]:
                none = self._draft.rows("machine", 1, upper=limit, site=kind.site, model=one.model)
                builder.entries(none, [column, ways[0].z], [1.0, limit])
        return Rest(lines=one.lines, ways=tuple(ways), capacity=one.capacity, most=most)

    def _way(self, able: Floats, lost: float, most: float) -> Way:
        y = int(self._draft.builder.variables(1, upper=most)[0])
        z = int(self._draft.builder.variables(1, upper=1.0, integer=True)[0])
        return Way(y=y, z=z, able=able, lost=lost)


def _levels(rate: Floats, least: Floats, most: int) -> Floats:
    """The μ/d to choose from: 0 (nothing of what may be there counts) and all T/(k d) of the columns that may
    be there, or `most` spread over them; none where no column may be there."""
    there = least > 0
    if not there.any():
        return np.zeros(0)
    ratios: Floats = np.unique(np.r_[0.0, rate[there] / least[there]])
    if len(ratios) > most:
        ratios = ratios[np.unique(np.linspace(0, len(ratios) - 1, most).round().astype(np.int64))]
    return ratios
