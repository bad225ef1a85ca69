"""Random changes of a plan, carried out event by event: they arrive within what bounds them on the way."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from coral.core.operate.served import Capacity
from tests.core.operate.changes import Change, Search, Walk, change

WORLDS = 500 * int(os.environ.get("CORAL_CAMPAIGN", "1"))


@settings(max_examples=150, deadline=None)
@given(draw=st.randoms(), apart=st.booleans(), tight=st.booleans())
def test_every_change_arrives_within_supply_and_budget(draw: Random, apart: bool, tight: bool) -> None:
    """And claims no device twice, gives nothing back that it rents again, and has one answer to one question:
    all of it asserted at every step of the walk."""
    Walk(change(draw, machines=4, instances=7, apart=apart, tight=tight), draw).run()


def test_no_floor_breaks_where_any_order_keeps_all_of_them() -> None:
    """Compared with a search through all orders. Of models that are above their floor when the change begins:
    one that is below has no floor to keep until it has been above."""
    seen: Counter[str] = Counter()
    for seed in range(WORLDS):
        draw = Random(seed)
        one = change(draw, machines=4, instances=6, apart=seed % 2 == 0, tight=seed % 3 == 0)
        if not _above(one):
            continue
        walk = Walk(one, draw)
        walk.run()
        if not walk.breaks:
            seen["kept"] += 1
            continue
        search = Search(one)
        assert not search.attainable(), f"world {seed}: {walk.breaks}"
        seen["no way" if search.known else "unknown"] += 1
    assert seen["kept"] > 10 * seen["unknown"]
    assert seen["no way"] > 0


def _above(one: Change) -> bool:
    """Whether every model of which something runs is at its floor or above."""
    planned, ready = Capacity(one.bounds.asked), Capacity(one.bounds.asked)
    for wanted in one.plan.instances:
        planned.add(wanted.template, wanted.domain, wanted.count)
    for held in one.instances.values():
        ready.add(held.template, held.domain)
    return all(ready.served(m) >= one.bounds.floor * planned.served(m) - 1e-9 for m in ready.models())
