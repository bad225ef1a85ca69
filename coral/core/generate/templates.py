"""What a search found: undominated templates, each with the stage of every node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.generate.closed_form import Witness
from coral.core.generate.combinations import Rows
from coral.core.generate.partitions import partitions
from coral.types.program import Floats, Ints


class Found(Struct, frozen=True, kw_only=True, eq=False):
    """Undominated templates. `stage_of[row, type-sorted node]` counts stages from the first; -1 pads."""

    usage: NDArray[np.int16]
    throughput: Floats
    irreducible: NDArray[np.bool_]
    stages: NDArray[np.int8]
    stage_of: NDArray[np.int8]
    units: NDArray[np.int8]
    """`[row, stage]`: units of the SLO that a stage is given; 0 where each of S has ℓ/S of it."""
    target: NDArray[np.int16]
    """Number of the latency target whose T̂ it is made of; 0 is the SLO."""
    combinations: int
    """How many node combinations were within (N_max, ρ)."""


def solved_templates(
    rows: Rows,
    throughput: Floats,
    witness: Witness,
    units: NDArray[np.int32],
    target: NDArray[np.int16],
    irreducible: NDArray[np.bool_],
    *,
    types: int,
    width: int,
    combinations: int,
) -> Found:
    """Templates of one size, out of the witnesses of the rows that are kept."""
    size = rows.shape[1]
    labels, _, start = partitions(size)
    partition, first, last = witness.T
    stages = np.searchsorted(start, partition, side="right")
    usage = np.zeros((len(rows), types), np.int16)
    for i in range(size):
        np.add.at(usage, (np.arange(len(rows)), rows[:, i]), 1)
    stage_of = np.full((len(rows), width), -1, np.int8)
    units_of = np.zeros((len(rows), width), np.int8)
    for count in np.unique(stages):
        of = np.flatnonzero(stages == count)
        order = _order(first[of], last[of], int(count))
        stage_of[of, :size] = np.take_along_axis(order, labels[partition[of]].astype(np.int64), axis=1)
        placed = np.zeros(order.shape, np.int8)
        np.put_along_axis(placed, order.astype(np.int64), units[of, :count].astype(np.int8), axis=1)
        units_of[of, :count] = placed
    return Found(
        usage=usage,
        throughput=throughput,
        irreducible=irreducible,
        stages=stages.astype(np.int8),
        stage_of=stage_of,
        units=units_of,
        target=target,
        combinations=combinations,
    )


def joined(parts: Sequence[Found], types: int, width: int) -> Found:
    """Templates of several sizes as one; `types` and `width` are for where there are none."""
    none = Found(
        usage=np.zeros((0, types), np.int16),
        throughput=np.zeros(0),
        irreducible=np.zeros(0, np.bool_),
        stages=np.zeros(0, np.int8),
        stage_of=np.zeros((0, width), np.int8),
        units=np.zeros((0, width), np.int8),
        target=np.zeros(0, np.int16),
        combinations=0,
    )
    parts = [none, *parts]
    return Found(
        usage=np.concatenate([part.usage for part in parts]),
        throughput=np.concatenate([part.throughput for part in parts]),
        irreducible=np.concatenate([part.irreducible for part in parts]),
        stages=np.concatenate([part.stages for part in parts]),
        stage_of=np.concatenate([part.stage_of for part in parts]),
        units=np.concatenate([part.units for part in parts]),
        target=np.concatenate([part.target for part in parts]),
        combinations=sum(part.combinations for part in parts),
    )


def _order(first: Ints, last: Ints, stages: int) -> NDArray[np.int8]:
    """`[row, group]`: the stage a group becomes: the first 0, the last S-1, the others between in order."""
    order = np.tile(np.arange(stages, dtype=np.int8), (len(first), 1))
    if stages > 1:
        row = np.arange(len(first))
        key = order.astype(np.int16)
        key[row, first] = -1
        key[row, last] = stages
        order = np.argsort(np.argsort(key, axis=1), axis=1).astype(np.int8)
    return order
