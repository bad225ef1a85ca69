"""Plans that were carried out, as people and dashboards are shown them; read beside a running coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coral.core.serve.store import plans
from coral.core.serve.store.database import FILE, Store
from coral.core.serve.store.plans import PlanRecord
from coral.errors import StoreError

NEWEST = 20


def history(state: Path, *, newest: int = NEWEST) -> list[PlanRecord]:
    """Newest first; none where nothing was ever served from that state folder. Raises StoreError."""
    if not (state / FILE).exists():
        return []
    store = Store(state / FILE, read_only=True)
    try:
        return plans.plans(store, newest=newest)
    finally:
        store.close()


def past_plan(state: Path, number: int) -> PlanRecord:
    """Raises StoreError where there is none of that number, or none any more."""
    found = None
    if (state / FILE).exists():
        store = Store(state / FILE, read_only=True)
        try:
            found = plans.plan(store, number)
        finally:
            store.close()
    if found is None:
        raise StoreError(f"no plan {number} is kept", mend="`coral plan history` lists those that are")
    return found


def summary(record: PlanRecord) -> dict[str, Any]:
    """What is listed of a plan: all but machines, templates and the certificate."""
    plan = record.plan
    return {
        "number": record.number,
        "made_s": record.made_s,
        "reason": record.reason,
        "planner": plan.planner,
        "price_usd_h": plan.price_usd_h,
        "machines": sum(one.kept + one.new for one in plan.machines),
        "instances": sum(one.count for one in plan.instances),
        "satisfied": plan.satisfied,
        "unmet": [one.model for one in plan.services if not one.met],
        "notes": list(plan.notes),
    }


def whole(record: PlanRecord) -> dict[str, Any]:
    """All of it, as plain JSON."""
    return {**summary(record), "plan": msgspec.to_builtins(record.plan)}
