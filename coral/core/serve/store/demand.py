"""What was asked of each model: samples by which a restart knows the demand, and a forecast its season."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from coral.core.serve.store.database import Store

KEEP_S = 14 * 86_400.0
"""Two weeks: a forecast with a weekly season needs two of them."""


class DemandSample(Struct, frozen=True, kw_only=True):
    """Arrivals of one model in the `span_s` seconds that ended at `at_s`, with their tokens in sum."""

    at_s: float
    span_s: float
    requests: int
    input_tokens: int
    output_tokens: int


def add_sample(store: Store, model: str, sample: DemandSample) -> None:
    """Append one; a store that cannot be written is said and loses it."""
    value = msgspec.json.encode(sample).decode()
    store.note(
        "INSERT OR REPLACE INTO demand (model, at_s, value) VALUES (?, ?, ?)", (model, sample.at_s, value)
    )


def prune(store: Store, *, now_s: float) -> None:
    store.note("DELETE FROM demand WHERE at_s < ?", (now_s - KEEP_S,))


def samples(store: Store, model: str, *, since_s: float) -> list[DemandSample]:
    """In order of time. Raises StoreError."""
    rows = store.read(
        "SELECT value FROM demand WHERE model = ? AND at_s >= ? ORDER BY at_s", (model, since_s)
    )
    return [msgspec.json.decode(str(value), type=DemandSample) for (value,) in rows]
