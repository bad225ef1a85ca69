"""Files of measured milliseconds per layer, CSV or Parquet, one time a row.

| column | |
|---|---|
| `model` | name of the model in the file; `models` of the options says its layers and hidden size |
| `gpu` | name of the catalogue, or one that `gpus` of the options maps to it; `l4x2` is tensor parallel 2 |
| `phase` | `prompt` (or `prefill`), or `decode` |
| `batch_tokens` | prompt tokens of the step, or decode rows |
| `latency_ms_per_layer` | of one middle layer, all its kernels |
| `context` | optional: tokens of each prompt, or of context of each decode row |

Helix's published profiles have this layout. Rows of batch 0 are skipped; rows of one batch are averaged.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from coral.errors import ProfileError

COLUMNS = ("model", "gpu", "phase", "batch_tokens", "latency_ms_per_layer")
PHASES: Mapping[str, Literal["prefill", "decode"]] = {
    "prompt": "prefill",
    "prefill": "prefill",
    "decode": "decode",
}

WIDE = re.compile(r"(.+)x([1-9]\d?)")
"""A GPU and a tensor parallel degree; longer numbers are part of a name, as in `rtx3090`."""


class LayerTime(Struct, frozen=True, kw_only=True):
    """One measured time. `gpu` is the file's own name without its `xN`; `context` None: not stated."""

    model: str
    gpu: str
    tp: int
    phase: Literal["prefill", "decode"]
    tokens: float
    seconds: float
    context: float | None = None


def read_layer_times(path: Path) -> list[LayerTime]:
    """Raises ProfileError for a file that cannot be read, lacks columns, or has a row that makes no sense:
    by its number, that of the line in a CSV file and counted from 1 in a Parquet file."""
    rows, first = (_parquet(path), 1) if path.suffix == ".parquet" else (_csv(path), 2)
    found = [one for number, row in enumerate(rows, first) if (one := _time(row, path, number)) is not None]
    if not found:
        raise ProfileError(
            f"{path} holds no measured time",
            mend=f"a file of `profiler: {{use: measured}}` has a line of columns: {', '.join(COLUMNS)}",
        )
    return found


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            _check_columns(reader.fieldnames or (), path)
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"cannot read {path}: {error}", mend="check `files` of the profiler") from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, use_threads=False)  # its threads may abort a process that ends
    except (OSError, pa.ArrowException) as error:
        raise ProfileError(f"cannot read {path}: {error}", mend="check `files` of the profiler") from error
    _check_columns(table.column_names, path)
    yield from table.to_pylist()


def _check_columns(names: Iterable[str], path: Path) -> None:
    missing = [name for name in COLUMNS if name not in set(names)]
    if missing:
        raise ProfileError(
            f"{path} has no column {', '.join(missing)}",
            mend=f"a file of `profiler: {{use: measured}}` has a line of columns: {', '.join(COLUMNS)}",
        )


def _time(row: Mapping[str, Any], path: Path, number: int) -> LayerTime | None:
    where = f"{path}, row {number}"
    phase = PHASES.get(str(row["phase"]).strip())
    if phase is None:
        raise ProfileError(f"{where}: phase must be prompt, prefill or decode, found {row['phase']!r}")
    tokens = _number(row, "batch_tokens", where)
    seconds = _number(row, "latency_ms_per_layer", where) / 1e3
    if tokens == 0:
        return None
    if seconds == 0:
        raise ProfileError(f"{where}: latency_ms_per_layer is 0 for a batch of {tokens:g}")
    gpu = str(row["gpu"]).strip()
    wide = WIDE.fullmatch(gpu)
    stated = row.get("context") not in (None, "")
    return LayerTime(
        model=str(row["model"]).strip(),
        gpu=wide[1] if wide else gpu,
        tp=int(wide[2]) if wide else 1,
        phase=phase,
        tokens=tokens,
        seconds=seconds,
        context=_number(row, "context", where) if stated else None,
    )


def _number(row: Mapping[str, Any], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ProfileError(f"{where}: {column} must be a number from 0, found {row[column]!r}")
    return value
