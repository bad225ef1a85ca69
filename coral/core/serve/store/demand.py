"""What was asked of each model: samples by which a restart knows the demand, and a forecast its season."""

from __future__ import annotations

import msgspec

from coral.core.operate.demand import DemandSample
from coral.core.serve.store.database import Store

KEEP_S = 14 * 86_400.0


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
    return store.decoded(rows, DemandSample)
