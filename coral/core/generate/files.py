"""The two files of an entry: its rows as Parquet, its T̂ table as msgpack."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from coral.core.generate.templates import Found
from coral.core.profile.throughput import ThroughputTable
from coral.types.hardware import NodeType


def rows_file(node_types: Sequence[NodeType], found: Found) -> bytes:
    import pyarrow
    import pyarrow.parquet as parquet

    columns: dict[str, Any] = {f"nodes {kind}": found.usage[:, c] for c, kind in enumerate(node_types)}
    columns["throughput"] = found.throughput
    columns["irreducible"] = found.irreducible
    columns["stages"] = found.stages
    for i in range(found.stage_of.shape[1]):
        columns[f"stage_of_{i}"] = found.stage_of[:, i]
    if found.units.any():
        for i in range(found.units.shape[1]):
            columns[f"units_of_{i}"] = found.units[:, i]
    if found.target.any():
        columns["target"] = found.target
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
    return sink.getvalue()


class _Table(Struct, frozen=True, kw_only=True):
    """A `ThroughputTable`; arrays as C-ordered little-endian bytes of one shape."""

    shape: tuple[int, int, int, int]
    rate: bytes
    tp: bytes
    in_flight: float


class _Tables(Struct, frozen=True, kw_only=True):
    node_types: tuple[NodeType, ...]
    by_stages: tuple[_Table, ...]
    by_units: tuple[_Table, ...] | None


def tables_file(rates: Sequence[ThroughputTable], budgets: Sequence[ThroughputTable] | None) -> bytes:
    return msgspec.msgpack.encode(
        _Tables(
            node_types=rates[0].node_types,
            by_stages=tuple(map(_stored, rates)),
            by_units=None if budgets is None else tuple(map(_stored, budgets)),
        )
    )


def tables_of(content: bytes) -> tuple[list[ThroughputTable], list[ThroughputTable] | None]:
    """For each latency target: by number of stages, and by units of it where stages share it freely."""
    stored = msgspec.msgpack.decode(content, type=_Tables)
    rates = [_restored(one, stored.node_types) for one in stored.by_stages]
    if stored.by_units is None:
        return rates, None
    return rates, [_restored(one, stored.node_types) for one in stored.by_units]


def _stored(table: ThroughputTable) -> _Table:
    first, roles, layers, types = table.rate.shape
    return _Table(
        shape=(first, roles, layers, types),
        rate=table.rate.astype("<f8").tobytes(),
        tp=table.tp.astype("i1").tobytes(),
        in_flight=table.in_flight,
    )


def _restored(stored: _Table, node_types: tuple[NodeType, ...]) -> ThroughputTable:
    return ThroughputTable(
        node_types=node_types,
        rate=np.frombuffer(stored.rate, "<f8").astype(np.float64).reshape(stored.shape),
        tp=np.frombuffer(stored.tp, "i1").astype(np.int8).reshape(stored.shape),
        in_flight=stored.in_flight,
    )
