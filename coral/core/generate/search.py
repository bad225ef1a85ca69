"""All templates of one (model, phase): every node combination within (N_max, ρ), solved exactly.

Sizes follow one another, since a multiset starts from the best of its subsets; within a size every
multiset is for itself. So a size is cut into pieces that may be solved anywhere, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.generate.closed_form import Witness, solve_rows
from coral.core.generate.combinations import (
    MAX_NODES,
    Rows,
    best_split,
    best_without,
    binomials,
    ranks,
    within,
)
from coral.core.generate.free_budgets import improve_rows
from coral.core.generate.irreducible import beats
from coral.core.generate.partitions import partitions
from coral.core.generate.templates import Found, joined, solved_templates
from coral.errors import UsageError
from coral.types.program import Floats, Ints

PIECE = 8192
"""Most combinations of a piece: a fraction of a second to a few seconds of work."""


class Tables(Struct, frozen=True, kw_only=True, eq=False):
    """T̂ for one latency target, as `Search` has it for the SLO."""

    rate: Floats
    free: Floats | None = None


class Search(Struct, frozen=True, kw_only=True, eq=False):
    """`rate[S-1, role, L, type]` of the T̂ table; `memory_bytes[type]` of a whole node; ρ × model size.

    `free[k-1, role, L, type]`: T̂ of stages that are given k of K units of the SLO, k = 1 … K-1, where
    stages share it freely.
    """

    rate: Floats
    memory_bytes: Floats
    memory_limit: float
    max_nodes: int
    free: Floats | None = None
    shorter: tuple[Tables, ...] = ()
    """T̂ for shorter latency targets: the nodes of a template aim at the one that serves most."""


class Piece(Struct, frozen=True, kw_only=True, eq=False):
    """Combinations of one size with what their subsets reach, and the tables: all that solving needs."""

    rate: Floats
    rows: Rows
    incumbent: Floats
    free: Floats | None = None
    shorter: tuple[Tables, ...] = ()


class Solved(Struct, frozen=True, kw_only=True, eq=False):
    """The answer to a piece, row by row."""

    throughput: Floats
    witness: Witness
    units: NDArray[np.int32]
    """`[rows, size]`: units of the target of each group; 0 where each stage has 1/S of it."""
    target: NDArray[np.int16]
    """Number of the latency target; 0 is the SLO."""


def solve(piece: Piece) -> Solved:
    """Pure: where and when a piece is solved makes no difference."""
    # What came out of another process's memory may be read-only: kernels would be compiled once more for it.
    rows = np.require(piece.rows, requirements="W")
    incumbent = np.require(piece.incumbent, requirements="W")
    best, witness, units = _solved(rows, incumbent, Tables(rate=piece.rate, free=piece.free))
    target = np.zeros(len(rows), np.int16)
    left = _improvable(rows, best, piece.shorter)
    for number, tables in enumerate(piece.shorter if len(left) else (), 1):
        found = _solved(rows[left], best[left], tables)
        better = np.flatnonzero(found[0] > best[left])
        at = left[better]
        best[at], witness[at], units[at] = (answer[better] for answer in found)
        target[at] = number
    return Solved(throughput=best, witness=witness, units=units, target=target)


def _improvable(rows: Rows, best: Floats, shorter: Sequence[Tables]) -> NDArray[np.intp]:
    """Rows that a table might improve that is everywhere the best of the targets': no others can be."""
    if not shorter:
        return np.zeros(0, np.intp)
    free = [tables.free for tables in shorter if tables.free is not None]
    ideal = Tables(
        rate=np.maximum.reduce([tables.rate for tables in shorter]),
        free=np.maximum.reduce(free) if free else None,
    )
    return np.flatnonzero(_solved(rows, best, ideal)[0] > best)


def _solved(rows: Rows, incumbent: Floats, tables: Tables) -> tuple[Floats, Witness, NDArray[np.int32]]:
    """Throughput, witness and units of each row for one latency target."""
    rate = _with_bound(tables.rate)
    counts = np.arange(1, rate.shape[2] + 1)[:, None]
    work = (rate * counts).max(axis=(1, 2))
    labels, masks, start = partitions(rows.shape[1])
    throughput = np.zeros(len(rows))
    witness = np.zeros((len(rows), 3), np.int32)
    units = np.zeros(rows.shape, np.int32)
    solve_rows(rows, incumbent, rate, work, labels, masks, start, throughput, witness)
    if tables.free is not None:
        free = _with_bound(tables.free)
        improve_rows(rows, free, len(rate), labels, masks, start, throughput, witness, units)
    return throughput, witness, units


class Sizes:
    """A search that goes on size by size: `pieces()`, `take()` their answers, until `pieces()` is empty."""

    def __init__(self, task: Search) -> None:
        if not 1 <= task.max_nodes <= MAX_NODES:
            raise UsageError(f"max_nodes is {task.max_nodes}; it must be within 1..{MAX_NODES}")
        self._task = task
        self._types = task.rate.shape[3]
        self._binomial = binomials(self._types)
        self._size = 0
        self._rank: Ints = np.zeros(0, np.int64)
        self._rows: Rows = np.zeros((0, 0), np.int16)
        self._incumbent = np.zeros(0)
        self._smaller = np.zeros(1)
        self._totals: list[Floats] = []
        self._parts: list[Found] = []

    def pieces(self) -> list[Piece]:
        """The pieces of the next size that has any combination; none where all sizes are done."""
        task = self._task
        while self._types and self._size < task.max_nodes:
            self._size += 1
            self._rows, self._rank = within(task.memory_bytes, task.memory_limit, self._size)
            self._incumbent = best_without(self._rows, self._smaller, self._binomial)
            if len(self._rows):
                return [
                    Piece(
                        rate=task.rate,
                        rows=self._rows[low : low + PIECE],
                        incumbent=self._incumbent[low : low + PIECE],
                        free=task.free,
                        shorter=task.shorter,
                    )
                    for low in range(0, len(self._rows), PIECE)
                ]
        return []

    def take(self, answers: Sequence[Solved]) -> None:
        """The answers to the pieces of this size, in their order."""
        throughput = np.concatenate([one.throughput for one in answers])
        witness = np.concatenate([one.witness for one in answers])
        units = np.concatenate([one.units for one in answers])
        target = np.concatenate([one.target for one in answers])
        split = best_split(self._rows, self._totals, self._binomial)
        keep = beats(throughput, self._incumbent)
        self._parts.append(
            solved_templates(
                self._rows[keep],
                throughput[keep],
                witness[keep],
                units[keep],
                target[keep],
                beats(throughput, split)[keep],
                types=self._types,
                width=self._task.max_nodes,
                combinations=len(self._rows),
            )
        )
        self._smaller = self._by_rank(throughput)
        self._totals.append(self._by_rank(np.maximum(split, throughput)))

    def found(self) -> Found:
        return joined(self._parts, self._types, self._task.max_nodes)

    def _by_rank(self, values: Floats) -> Floats:
        out = np.zeros(ranks(self._types, self._size))
        out[self._rank] = values
        return out


def search(task: Search, progress: Callable[[int], None] | None = None) -> Found:
    """Solve a task here; `progress` is told how many more combinations are done."""
    sizes = Sizes(task)
    while pieces := sizes.pieces():
        answers: list[Solved] = []
        for piece in pieces:
            answers.append(solve(piece))
            if progress is not None:
                progress(len(piece.rows))
        sizes.take(answers)
    return sizes.found()


def _with_bound(rate: Floats) -> Floats:
    """The rate table with a fifth role: the greatest of first, mid and last."""
    bound = rate[:, :3].max(axis=1, keepdims=True)
    return np.ascontiguousarray(np.concatenate([rate, bound], axis=1))
