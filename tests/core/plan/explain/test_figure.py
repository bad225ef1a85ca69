from __future__ import annotations

import pytest
from msgspec.structs import replace

from coral.core.plan.explain.figure import Direction, Figure, Served, difference
from coral.core.plan.explain.wording import in_words
from coral.types.plan import Certificate, Plan, Service


def plan(cost: float, bound: float | None = None, *, served: float = 1.0) -> Plan:
    certificate = None
    if bound is not None:
        certificate = Certificate(
            cost_usd_h=cost, bound_usd_h=bound, gap=(cost - bound) / cost if cost else 0.0, source="a test"
        )
    return Plan(
        planner="coral",
        machines=(),
        instances=(),
        services=(Service(model="m", phase="mixed", demand=10.0, served=10.0 * served, capacity=20.0),),
        price_usd_h=cost - 0.25,
        initialization_usd_h=0.25,
        certificate=certificate,
    )


@pytest.mark.parametrize(
    ("before", "after", "direction", "usd_h", "least", "most", "apart"),
    [
        ((10.0, 10.0), (12.0, 12.0), "dearer", 2.0, 2.0, 2.0, True),
        ((10.0, 9.5), (12.0, 11.0), "dearer", 2.0, 1.0, 2.5, True),
        ((10.0, 9.5), (10.4, 9.9), "dearer", 0.4, 0.0, 0.9, False),
        # A plan after something was taken away also holds before: the better one is no saving.
        ((10.0, 9.0), (9.8, 9.1), "dearer", 0.0, 0.0, 0.8, False),
        ((10.0, 9.5), (8.0, 7.9), "cheaper", -2.0, -2.1, -1.5, True),
        ((10.0, 9.5), (9.8, 9.4), "cheaper", -0.2, -0.6, 0.0, False),
        ((10.0, 10.0), (10.0, 10.0), "cheaper", 0.0, 0.0, 0.0, False),
        ((0.0, 0.0), (0.0, 0.0), "dearer", 0.0, 0.0, 0.0, False),
    ],
)
def test_the_difference_of_optima_lies_between_cost_and_bound(
    before: tuple[float, float],
    after: tuple[float, float],
    direction: Direction,
    usd_h: float,
    least: float,
    most: float,
    apart: bool,
) -> None:
    found = difference(plan(*before), plan(*after), direction)
    assert (found.usd_h, found.least_usd_h, found.most_usd_h) == pytest.approx((usd_h, least, most))
    assert found.told_apart is apart
    assert found.how == "re-solved"


def test_plans_that_are_not_proven_are_not_told_apart() -> None:
    found = difference(plan(10.0), plan(13.0, 12.0), "dearer")
    assert (found.usd_h, found.least_usd_h, found.told_apart) == (3.0, None, False)
    assert "not proven" in in_words(found)


def test_costs_of_unequal_service_are_not_compared() -> None:
    found = difference(plan(10.0, 10.0), plan(5.0, 5.0, served=0.5), "dearer")
    assert found.usd_h is None
    assert found.served == (Served(model="m", phase="mixed", before=1.0, after=0.5),)
    assert found.told_apart
    assert in_words(found) == "served: m mixed 100.0% → 50.0%"
    same = difference(plan(5.0, 5.0, served=0.5), plan(5.0, 5.0, served=0.5), "cheaper")
    assert (same.told_apart, in_words(same)) == (False, "serves no more and no less")


def test_what_holds_no_more_is_told() -> None:
    broken = replace(plan(9.0, 9.0), unkept=("m: 0% is left when a machine is lost",))
    found = difference(plan(10.0, 10.0), broken, "dearer")
    assert (found.usd_h, found.told_apart, found.served) == (None, True, ())
    assert in_words(found) == "m: 0% is left when a machine is lost"
    assert difference(broken, broken, "dearer").unkept == ()


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        (
            Figure(how="re-solved", usd_h=2.0, least_usd_h=2.0, most_usd_h=2.0, told_apart=True),
            "2.0000 USD/h more",
        ),
        (
            Figure(how="re-solved", usd_h=-2.0, least_usd_h=-2.1, most_usd_h=-1.5, told_apart=True),
            "2.0000 USD/h less (proven: 1.5000 to 2.1000)",
        ),
        (
            Figure(how="re-solved", usd_h=0.4, least_usd_h=0.0, most_usd_h=0.9),
            "not told apart from no change: up to 0.9000 USD/h would be hidden by the gaps",
        ),
        (Figure(how="re-solved", usd_h=0.0, least_usd_h=0.0, most_usd_h=0.0), "no change"),
    ],
)
def test_in_words(figure: Figure, says: str) -> None:
    assert in_words(figure) == says
