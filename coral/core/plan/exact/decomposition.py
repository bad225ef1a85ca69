"""A bound over whole covers (Dantzig and Wolfe 1960): stronger than the linear relaxation.

Instead of fractions of single columns, fractions of whole integral covers of each demand row are mixed; the
rows that link them keep their prices y. For any y the program costs at least

    L(y) = y·b + Σ_k min {cost of a cover of row k at prices y} + Σ_free min over its bounds

and the best y is found by column generation with one column per cover, smoothed as in `relaxation`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan import bound as bounds
from coral.core.plan.budget import Budget
from coral.core.plan.exact.covers import Cover
from coral.core.plan.exact.pricing import CoverPricer, Priced
from coral.core.plan.exact.relaxation import linear, select
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Ints, Program

SMOOTHING = 0.5
ROUNDS = 150
CLOSE = 1e-7


class Whole(Struct, frozen=True, kw_only=True, eq=False):
    """One cover as a column: how many (`counts`) of which columns of the program, what it costs, and what it
    takes of the rows that link."""

    row: int
    """Position of its cover row among the cover rows."""
    columns: Ints
    counts: Ints
    cost: float
    activity: Floats

    @property
    def key(self) -> tuple[int, bytes, bytes]:
        return (self.row, self.columns.tobytes(), self.counts.tobytes())


class Decomposed(Struct, frozen=True, kw_only=True, eq=False):
    """`prices` (rows,), 0 on cover rows, and their `bound`; `least[k]`: the cheapest cover of row k there."""

    prices: Floats
    bound: float
    least: Floats
    value: float
    wholes: tuple[Whole, ...]
    rounds: int


class Blocks:
    """A program taken apart: its covers, the columns in none (`free`), the rows that link (`linking`)."""

    def __init__(self, program: Program, covers: Sequence[Cover]) -> None:
        self.program = program
        self.covers = tuple(covers)
        self.pricers = [CoverPricer(cover, program.upper[cover.columns]) for cover in covers]
        inside = np.zeros(program.columns, dtype=np.bool_)
        for cover in covers:
            inside[cover.columns] = True
            inside[cover.hidden] = True
        self.free: Ints = np.flatnonzero(~inside)
        linking = np.ones(program.rows, dtype=np.bool_)
        linking[[row for cover in covers for row in cover.rows]] = False
        self.linking: Ints = np.flatnonzero(linking)
        self.lower: Floats = program.row_lower[self.linking]
        self.upper: Floats = program.row_upper[self.linking]
        self.relieved: Ints = np.union1d(
            self.linking[self.part(self.free).indices], program.indices[program.data < 0]
        )
        """Rows in which free columns have entries, or columns of covers have negative ones."""

    def part(self, columns: Ints) -> Program:
        """Some columns over the linking rows, numbered anew."""
        keep = np.zeros(self.program.columns, dtype=np.bool_)
        keep[columns] = True
        return _linking_part(select(self.program, keep), self.linking, self.program.rows)

    def most_able(self, cover: Cover, x: Floats) -> Floats:
        """(cells,): the parts f of a demand as large as the program's rows allow."""
        program = self.program
        out = np.empty(len(cover.hidden))
        for cell, part in enumerate(cover.hidden):
            own = slice(program.indptr[part], program.indptr[part + 1])
            rates = [
                self._activity(int(row), x, cover.columns) / -value
                for row, value in zip(program.indices[own], program.data[own], strict=True)
                if row != cover.rows[0]
            ]
            out[cell] = min(rates)
        return out

    def _activity(self, row: int, x: Floats, columns: Ints) -> float:
        """What some columns do in a row."""
        program, total = self.program, 0.0
        for column in columns[x[columns] != 0]:
            own = slice(program.indptr[column], program.indptr[column + 1])
            total += float(program.data[own][program.indices[own] == row].sum() * x[column])
        return total

    def prices(self, linking: Floats) -> Floats:
        """Prices of the linking rows as prices of all rows, with signs that the rows allow."""
        out = np.zeros(self.program.rows)
        out[self.linking] = linking
        return bounds.corrected(self.program, out)

    def evaluate(self, prices: Floats) -> tuple[float, Floats, list[Priced]]:
        """L(y), the reduced costs, and a cheapest cover of every row."""
        reduced = bounds.reduced_costs(self.program, prices)
        priced = [
            pricer.price(reduced[cover.columns])
            for pricer, cover in zip(self.pricers, self.covers, strict=True)
        ]
        return self.bound(prices, reduced, [one.least for one in priced]), reduced, priced

    def bound(self, prices: Floats, reduced: Floats, least: Sequence[float]) -> float:
        y = prices[self.linking]
        with np.errstate(invalid="ignore"):
            rows = np.where(y > 0, y * self.lower, y * self.upper)
            rows[y == 0] = 0.0
            low, up = self.program.lower[self.free], self.program.upper[self.free]
            at = np.where(reduced[self.free] >= 0, reduced[self.free] * low, reduced[self.free] * up)
            at[reduced[self.free] == 0] = 0.0
        return float(rows.sum() + at.sum() + sum(least))

    def serves(self, row: int, columns: Ints, counts: Ints) -> bool:
        """Whether so many of these columns, all of the cover's, serve its demand."""
        cover = self.covers[row]
        at = np.searchsorted(cover.columns, columns)
        if (at >= len(cover.columns)).any() or (
            cover.columns[np.minimum(at, len(cover.columns) - 1)] != columns
        ).any():
            return False
        own = np.zeros(len(cover.columns))
        own[at] = counts
        parts = [min(float(strand.share @ own[strand.at]) for strand in cell) for cell in cover.cells]
        return min(1.0, sum(parts)) >= 1.0 - 1e-9

    def whole(self, row: int, priced: Priced) -> Whole:
        return self.whole_of(row, self.covers[row].columns[priced.items], priced.counts)

    def whole_of(self, row: int, columns: Ints, counts: Ints) -> Whole:
        program = self.program
        activity = np.zeros(program.rows)
        for column, count in zip(columns, counts, strict=True):
            span = slice(program.indptr[column], program.indptr[column + 1])
            activity[program.indices[span]] += program.data[span] * count
        return Whole(
            row=row,
            columns=columns,
            counts=counts,
            cost=float(program.cost[columns] @ counts),
            activity=activity[self.linking],
        )


def decompose(
    blocks: Blocks,
    solver: Solver,
    budget: Budget,
    prices: Floats,
    free: Ints,
    wholes: Sequence[Whole] = (),
) -> Decomposed | None:
    """From `prices` of a program alike, best of its relaxation; `free`: those of the free columns that its
    solution may use (the bound counts all). None where a demand row has no cover."""
    part = blocks.part(free)
    center = blocks.prices(prices[blocks.linking])
    best, _, priced = blocks.evaluate(center)
    if not all(np.isfinite(one.least) for one in priced):
        return None
    pool = {one.key: one for one in wholes}
    for row, one in enumerate(priced):
        pool.setdefault((new := blocks.whole(row, one)).key, new)
    least = [one.least for one in priced]
    dear = 100.0 * max(1.0, max(one.cost for one in pool.values()))
    value, rounds = np.inf, 0
    while rounds < ROUNDS:
        rounds += 1
        members = list(pool.values())
        program = master(blocks, part, members, dear=dear)
        solution = linear(program, solver, budget)
        duals = solution.row_duals
        if solution.status != "optimal" or duals is None or not np.isfinite(duals).all():
            break
        value = float(solution.objective)
        if value - best <= CLOSE * max(1.0, abs(value)):
            break
        y = blocks.prices(duals[: len(blocks.linking)])
        entered = False
        for tried in (SMOOTHING * center + (1 - SMOOTHING) * y, y):
            low, _, priced = blocks.evaluate(tried)
            if low > best:
                best, center, least = low, tried, [one.least for one in priced]
            for row, one in enumerate(priced):
                whole = blocks.whole(row, one)
                if whole.key not in pool:
                    pool[whole.key] = whole
                    entered = True
            if entered:
                break
        if not entered or budget.exhausted:
            break
    return Decomposed(
        prices=center,
        bound=best,
        least=np.array(least),
        value=value,
        wholes=tuple(pool.values()),
        rounds=rounds,
    )


def master(
    blocks: Blocks, free: Program, wholes: Sequence[Whole], *, dear: float | None, integer: bool = False
) -> Program:
    """One of the wholes for every cover row, and free columns: rows are the linking ones, then one per
    cover. `dear`: what leaving a cover row unserved costs; None: it may not be."""
    links, n = len(blocks.linking), len(blocks.covers)
    columns: list[Ints] = []
    data: list[Floats] = []
    for whole in wholes:
        at = np.flatnonzero(whole.activity)
        columns.append(np.r_[at, links + whole.row])
        data.append(np.r_[whole.activity[at], 1.0])
    spare = n if dear is not None else 0
    for row in range(spare):
        columns.append(np.array([links + row]))
        data.append(np.ones(1))
    count = len(wholes) + spare
    sizes = np.array([len(one) for one in columns], dtype=np.int64)
    original = free.integer if integer else np.zeros(free.columns, dtype=np.bool_)
    return Program(
        cost=np.r_[free.cost, [one.cost for one in wholes], np.full(spare, dear or 0.0)],
        lower=np.r_[free.lower, np.zeros(count)],
        upper=np.r_[free.upper, np.ones(count)],
        integer=np.r_[original, np.full(count, integer)],
        indptr=np.r_[free.indptr, free.indptr[-1] + np.cumsum(sizes)].astype(np.int64),
        indices=np.concatenate([free.indices, *columns]).astype(np.int64),
        data=np.concatenate([free.data, *data]),
        row_lower=np.r_[blocks.lower, np.ones(n)],
        row_upper=np.r_[blocks.upper, np.ones(n)],
    )


def _linking_part(part: Program, linking: Ints, rows: int) -> Program:
    """The same columns over the linking rows only, numbered anew."""
    number = np.full(rows, -1, dtype=np.int64)
    number[linking] = np.arange(len(linking))
    at = number[part.indices]
    kept = at >= 0
    column = np.repeat(np.arange(part.columns), np.diff(part.indptr))[kept]
    counts = np.bincount(column, minlength=part.columns)
    return replace(
        part,
        indptr=np.r_[0, np.cumsum(counts)].astype(np.int64),
        indices=at[kept],
        data=part.data[kept],
        row_lower=part.row_lower[linking],
        row_upper=part.row_upper[linking],
    )
