"""All templates of one (model, phase): every node combination within (N_max, ρ), solved exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.generate.closed_form import Witness, solve_rows
from coral.core.generate.combinations import MAX_NODES, Block, binomials, block
from coral.core.generate.irreducible import irreducible, undominated
from coral.core.generate.partitions import partitions
from coral.errors import UsageError
from coral.types.program import Floats, Ints

CHUNK = 4096
"""Rows that are solved between two calls of `progress`."""


class Search(Struct, frozen=True, kw_only=True, eq=False):
    """`rate[S-1, role, L, type]` of the T̂ table; `memory_bytes[type]` of a whole node; ρ × model size."""

    rate: Floats
    memory_bytes: Floats
    memory_limit: float
    max_nodes: int


class Found(Struct, frozen=True, kw_only=True, eq=False):
    """Undominated templates. `stage_of[row, type-sorted node]` counts stages from the first; -1 pads."""

    usage: NDArray[np.int16]
    throughput: Floats
    irreducible: NDArray[np.bool_]
    stages: NDArray[np.int8]
    stage_of: NDArray[np.int8]
    combinations: int
    """How many node combinations were within (N_max, ρ)."""


def search(task: Search, progress: Callable[[int], None] | None = None) -> Found:
    """Solve a task; `progress` is told how many more combinations are done."""
    if not 1 <= task.max_nodes <= MAX_NODES:
        raise UsageError(f"max_nodes is {task.max_nodes}; it must be within 1..{MAX_NODES}")
    types = task.rate.shape[3]
    rate = _with_bound(task.rate)
    binomial = binomials(types)
    smaller = np.zeros((len(rate) + 1, 1))
    least = np.zeros(1)
    totals: list[Floats] = []
    parts: list[Found] = []
    for size in range(1, task.max_nodes + 1) if types else ():
        rows = block(types, size)
        valid = task.memory_bytes[rows].sum(axis=1) <= task.memory_limit
        best = np.zeros((len(rate) + 1, len(rows)))
        witness = np.full((len(rate) + 1, len(rows), 3), -1, np.int32)
        _solve_block(rows, valid, rate, smaller, binomial, best, witness, progress)
        throughput = best.max(axis=0)
        keep = undominated(rows, throughput, least, binomial)
        whole, total = irreducible(rows, throughput, totals, binomial)
        parts.append(_found(rows, keep, best, witness, whole, types, int(valid.sum()), task.max_nodes))
        smaller, least = best, throughput
        totals.append(total)
    return _joined(parts, types, task.max_nodes)


def combinations_within(memory_bytes: Floats, memory_limit: float, max_nodes: int) -> int:
    """How many multisets of up to `max_nodes` nodes are within the memory limit."""
    types = len(memory_bytes)
    sizes = range(1, max_nodes + 1) if types else ()
    return sum(int((memory_bytes[block(types, n)].sum(axis=1) <= memory_limit).sum()) for n in sizes)


def _with_bound(rate: Floats) -> Floats:
    """The rate table with a fifth role: the greatest of first, mid and last."""
    bound = rate[:, :3].max(axis=1, keepdims=True)
    return np.ascontiguousarray(np.concatenate([rate, bound], axis=1))


def _solve_block(
    rows: Block,
    valid: NDArray[np.bool_],
    rate: Floats,
    smaller: Floats,
    binomial: Ints,
    best: Floats,
    witness: Witness,
    progress: Callable[[int], None] | None,
) -> None:
    for low in range(0, len(rows), CHUNK):
        high = min(low + CHUNK, len(rows))
        for stages in range(1, min(len(rate), rows.shape[1], rate.shape[2]) + 1):
            labels, masks = partitions(rows.shape[1], stages)
            solve_rows(
                rows,
                low,
                high,
                stages,
                rate[stages - 1],
                valid,
                smaller[stages],
                labels,
                masks,
                binomial,
                best[stages],
                witness[stages],
            )
        if progress is not None:
            progress(int(valid[low:high].sum()))


def _found(
    rows: Block,
    keep: NDArray[np.bool_],
    best: Floats,
    witness: Witness,
    whole: NDArray[np.bool_],
    types: int,
    combinations: int,
    width: int,
) -> Found:
    index = np.flatnonzero(keep)
    kept = rows[index]
    size = rows.shape[1]
    stages = best[:, index].argmax(axis=0)
    usage = np.zeros((len(index), types), np.int16)
    for i in range(size):
        np.add.at(usage, (np.arange(len(index)), kept[:, i]), 1)
    stage_of = np.full((len(index), width), -1, np.int8)
    for count in np.unique(stages):
        of = np.flatnonzero(stages == count)
        partition, first, last = witness[count, index[of]].T
        labels = partitions(size, int(count))[0][partition]
        stage_of[of, :size] = _in_order(labels, first, last, int(count))
    return Found(
        usage=usage,
        throughput=best[:, index].max(axis=0),
        irreducible=whole[index],
        stages=stages.astype(np.int8),
        stage_of=stage_of,
        combinations=combinations,
    )


def _in_order(labels: NDArray[np.int8], first: Ints, last: Ints, stages: int) -> NDArray[np.int8]:
    """Groups become stages: the first group 0, the last S-1, the others between in their order."""
    order = np.tile(np.arange(stages, dtype=np.int8), (len(labels), 1))
    if stages > 1:
        row = np.arange(len(labels))
        key = order.astype(np.int16)
        key[row, first] = -1
        key[row, last] = stages
        order = np.argsort(np.argsort(key, axis=1), axis=1).astype(np.int8)
    return np.take_along_axis(order, labels.astype(np.int64), axis=1)


def _joined(parts: list[Found], types: int, width: int) -> Found:
    if not parts:
        return Found(
            usage=np.zeros((0, types), np.int16),
            throughput=np.zeros(0),
            irreducible=np.zeros(0, np.bool_),
            stages=np.zeros(0, np.int8),
            stage_of=np.zeros((0, width), np.int8),
            combinations=0,
        )
    return Found(
        usage=np.concatenate([part.usage for part in parts]),
        throughput=np.concatenate([part.throughput for part in parts]),
        irreducible=np.concatenate([part.irreducible for part in parts]),
        stages=np.concatenate([part.stages for part in parts]),
        stage_of=np.concatenate([part.stage_of for part in parts]),
        combinations=sum(part.combinations for part in parts),
    )
