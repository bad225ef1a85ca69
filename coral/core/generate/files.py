"""The two files of an entry: its rows as Parquet, its T̂ table as msgpack."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from coral.core.generate.templates import Found
from coral.core.profile.throughput import ThroughputTable
from coral.types.hardware import NodeType


def rows_file(rates: ThroughputTable, found: Found) -> bytes:
    import pyarrow
    import pyarrow.parquet as parquet

    columns: dict[str, Any] = {f"nodes {kind}": found.usage[:, c] for c, kind in enumerate(rates.node_types)}
    columns["throughput"] = found.throughput
    columns["irreducible"] = found.irreducible
    columns["stages"] = found.stages
    for i in range(found.stage_of.shape[1]):
        columns[f"stage_of_{i}"] = found.stage_of[:, i]
    if found.units.any():
        for i in range(found.units.shape[1]):
            columns[f"units_of_{i}"] = found.units[:, i]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
    return sink.getvalue()


class _Table(Struct, frozen=True, kw_only=True):
    """A `ThroughputTable`; arrays as C-ordered little-endian bytes of one shape."""

    shape: tuple[int, int, int, int]
    rate: bytes
    tp: bytes


class _Tables(Struct, frozen=True, kw_only=True):
    node_types: tuple[NodeType, ...]
    by_stages: _Table
    by_units: _Table | None


def tables_file(rates: ThroughputTable, budgets: ThroughputTable | None) -> bytes:
    return msgspec.msgpack.encode(
        _Tables(
            node_types=rates.node_types,
            by_stages=_stored(rates),
            by_units=None if budgets is None else _stored(budgets),
        )
    )


def tables_of(content: bytes) -> tuple[ThroughputTable, ThroughputTable | None]:
    """By number of stages, and by units of the SLO where stages share it freely."""
    stored = msgspec.msgpack.decode(content, type=_Tables)
    by_units = None if stored.by_units is None else _restored(stored.by_units, stored.node_types)
    return _restored(stored.by_stages, stored.node_types), by_units


def _stored(table: ThroughputTable) -> _Table:
    first, roles, layers, types = table.rate.shape
    return _Table(
        shape=(first, roles, layers, types),
        rate=table.rate.astype("<f8").tobytes(),
        tp=table.tp.astype("i1").tobytes(),
    )


def _restored(stored: _Table, node_types: tuple[NodeType, ...]) -> ThroughputTable:
    return ThroughputTable(
        node_types=node_types,
        rate=np.frombuffer(stored.rate, "<f8").astype(np.float64).reshape(stored.shape),
        tp=np.frombuffer(stored.tp, "i1").astype(np.int8).reshape(stored.shape),
    )
