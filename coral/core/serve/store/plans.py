"""The history of plans: what was decided when, and why it was asked for."""

from __future__ import annotations

import contextlib

import msgspec
from msgspec import Struct

from coral.core.serve.store.database import Store, Value
from coral.errors import StoreError
from coral.types.plan import Plan

KEEP = 500
"""Plans; the oldest go."""


class PlanRecord(Struct, frozen=True, kw_only=True):
    """`reason`: what made the coordinator ask for it."""

    number: int
    made_s: float
    reason: str
    plan: Plan


def add_plan(store: Store, plan: Plan, *, reason: str, now_s: float) -> None:
    """Append one; a store that cannot be written is said and loses it."""
    value = msgspec.json.encode(plan).decode()
    if store.note("INSERT INTO plans (made_s, reason, value) VALUES (?, ?, ?)", (now_s, reason, value)):
        store.note("DELETE FROM plans WHERE number <= (SELECT max(number) FROM plans) - ?", (KEEP,))


def plans(store: Store, *, newest: int = KEEP) -> list[PlanRecord]:
    """The newest ones, newest first, without any that cannot be read (another Coral wrote it). Raises
    StoreError."""
    rows = store.read(
        "SELECT number, made_s, reason, value FROM plans ORDER BY number DESC LIMIT ?", (newest,)
    )
    records: list[PlanRecord] = []
    for row in rows:
        with contextlib.suppress(msgspec.DecodeError):
            records.append(_record(row))
    return records


def plan(store: Store, number: int) -> PlanRecord | None:
    """That one; None where there is none, or none any more. Raises StoreError."""
    rows = store.read("SELECT number, made_s, reason, value FROM plans WHERE number = ?", (number,))
    try:
        return _record(rows[0]) if rows else None
    except msgspec.DecodeError as error:
        raise StoreError(f"plan {number} of the store cannot be read: {error}") from error


def _record(row: tuple[Value, ...]) -> PlanRecord:
    number, made_s, reason, value = row
    return PlanRecord(
        number=msgspec.convert(number, int),
        made_s=msgspec.convert(made_s, float),
        reason=str(reason),
        plan=msgspec.json.decode(str(value), type=Plan),
    )
