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
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
    return sink.getvalue()


class _Tables(Struct, frozen=True, kw_only=True):
    """A `ThroughputTable`; arrays as C-ordered little-endian bytes of one shape."""

    node_types: tuple[NodeType, ...]
    shape: tuple[int, int, int, int]
    rate: bytes
    tp: bytes


def tables_file(rates: ThroughputTable) -> bytes:
    stages, roles, layers, types = rates.rate.shape
    return msgspec.msgpack.encode(
        _Tables(
            node_types=rates.node_types,
            shape=(stages, roles, layers, types),
            rate=rates.rate.astype("<f8").tobytes(),
            tp=rates.tp.astype("i1").tobytes(),
        )
    )


def tables_of(content: bytes) -> ThroughputTable:
    stored = msgspec.msgpack.decode(content, type=_Tables)
    return ThroughputTable(
        node_types=stored.node_types,
        rate=np.frombuffer(stored.rate, "<f8").astype(np.float64).reshape(stored.shape),
        tp=np.frombuffer(stored.tp, "i1").astype(np.int8).reshape(stored.shape),
    )
