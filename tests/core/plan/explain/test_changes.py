from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from coral.core.plan.document import as_saved, document, read_document
from coral.core.plan.explain.changes import changes, side_by_side
from coral.errors import UsageError
from coral.testing.tables import AWAY, HOME
from coral.testing.worlds import pipeline
from coral.types.hardware import Domain, NodeType
from coral.types.plan import Plan, PlannedInstances, PlannedMachines, Service

A, B = NodeType("a", 1), NodeType("b", 2)


def machines(name: str, count: int, price: float, *, kept: int = 0, domain: Domain = HOME) -> PlannedMachines:
    return PlannedMachines(
        machine_type=name,
        domain=domain,
        market="on_demand",
        price_usd_h=price,
        kept=kept,
        new=count - kept,
    )


def plan(held: tuple[PlannedMachines, ...], counts: dict[NodeType, int], served: float) -> Plan:
    return Plan(
        planner="coral",
        machines=held,
        instances=tuple(
            PlannedInstances(template=pipeline("m", "mixed", [kind], 2.0), domain=HOME, count=count)
            for kind, count in counts.items()
        ),
        services=(Service(model="m", phase="mixed", demand=8.0, served=served, capacity=served),),
        price_usd_h=sum((m.kept + m.new) * m.price_usd_h for m in held),
        initialization_usd_h=0.5,
        certificate=None,
    )


BEFORE = plan((machines("a.1", 3, 1.0, kept=1), machines("b.2", 1, 3.0)), {A: 3, B: 1}, 8.0)


def test_a_plan_does_not_differ_from_itself() -> None:
    found = changes(as_saved(BEFORE), as_saved(BEFORE))
    assert not found.changed
    assert (found.machines, found.instances, found.services) == ((), (), ())
    assert len(side_by_side(as_saved(BEFORE), as_saved(BEFORE)).machines) == 2


def test_what_changes_is_told_and_no_more() -> None:
    after = plan((machines("a.1", 5, 1.0, kept=3), machines("a.1", 1, 2.0, domain=AWAY)), {A: 5}, 6.0)
    found = changes(as_saved(BEFORE), as_saved(after))
    assert found.changed
    assert [(m.machine_type, m.domain, m.before, m.after, m.usd_h) for m in found.machines] == [
        ("a.1", "here/one", 3, 5, 2.0),
        ("a.1", "here/two", 0, 1, 2.0),
        ("b.2", "here/one", 1, 0, -3.0),
    ]
    assert [(i.nodes, i.before, i.after) for i in found.instances] == [("a x1", 3, 5), ("b x2", 1, 0)]
    (service,) = found.services
    assert (service.served.before, service.served.after, service.demand.same) == (8.0, 6.0, True)
    assert (found.price_usd_h.before, found.price_usd_h.after) == (6.0, 7.0)
    assert found.initialization_usd_h.same


def test_a_price_alone_is_a_change() -> None:
    found = changes(
        as_saved(BEFORE),
        as_saved(plan((machines("a.1", 3, 1.0), machines("b.2", 1, 2.5)), {A: 3, B: 1}, 8.0)),
    )
    assert [(m.machine_type, m.before, m.after, m.usd_h) for m in found.machines] == [("b.2", 1, 1, -0.5)]


def test_a_service_of_one_plan_only() -> None:
    other = replace(BEFORE, services=())
    (service,) = changes(as_saved(BEFORE), as_saved(other)).services
    assert (service.demand.before, service.demand.after) == (8.0, None)


def test_a_saved_plan_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(document(BEFORE) | {"added": "by a later version"}))
    assert read_document(path) == as_saved(BEFORE)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not a plan document"),
        ("\udcff", "is not a plan document"),
        ("[]", "it has no format, expected is 1"),
        ("{}", "it has no format, expected is 1"),
        (json.dumps({**document(BEFORE), "format": 2}), "it has format 2, expected is 1"),
        (json.dumps({**document(BEFORE), "machines": [{"kept": "many"}]}), "damaged plan document"),
        (None, "No such file"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "old.json"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as refused:
        read_document(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)
    assert "--save" in str(refused.value)
