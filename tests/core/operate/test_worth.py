"""A plan that saves next to nothing moves nothing; one that serves more, or keeps more, does."""

from __future__ import annotations

from msgspec.structs import replace

from coral.core.operate.served import Asked
from coral.core.operate.worth import is_whole, reason_to_stay
from coral.types.plan import Plan
from tests.core.operate.test_reconcile import instance, machine, plan, template

OLD, NEW = template(throughput=2.0), template(layers=5, throughput=2.0)
RUNNING = replace(plan(1, (OLD, 2)), price_usd_h=1.0)


def stay(
    other: Plan,
    *,
    whole: bool = True,
    rate: float = 4.0,
    before: float = 4.0,
    promises: bool = False,
    min_saving: float = 0.02,
) -> str | None:
    return reason_to_stay(
        other,
        RUNNING,
        whole=whole,
        asked={"m": Asked(requests_per_s=rate)},
        asked_before={"m": Asked(requests_per_s=before)},
        min_saving=min_saving,
        promises=promises,
    )


def another(price: float, count: int = 2, **more: object) -> Plan:
    return replace(plan(1, (NEW, count)), price_usd_h=price, **more)


def test_what_saves_less_than_the_least_saving_stays() -> None:
    assert stay(another(0.99)) == "another would save 1.0% of its cost"
    assert stay(another(0.97)) is None
    assert stay(another(1.1)) == "another would save 0.0% of its cost"


def test_without_a_least_saving_every_plan_is_carried_out() -> None:
    assert stay(another(1.1), min_saving=0.0) is None
    assert stay(another(1.1), min_saving=1e-9) is not None


def test_initialization_counts() -> None:
    assert stay(another(0.9, initialization_usd_h=0.09)) is not None
    assert stay(another(0.9, initialization_usd_h=0.05)) is None


def test_what_does_not_serve_as_much_goes() -> None:
    assert stay(another(1.0, count=3), rate=6.0) is None
    assert stay(another(1.0, count=3), rate=4.0) is not None, "nobody asks for more"


def test_what_is_not_whole_goes() -> None:
    assert stay(another(1.0), whole=False) is None
    running = [instance("a", OLD, "m1", (0,)), instance("b", OLD, "m1", (1,))]
    assert is_whole(RUNNING, [machine("m1")], running)
    assert not is_whole(RUNNING, [machine("m1")], running[:1])
    assert not is_whole(RUNNING, [replace(machine("m1"), leaving=True)], running)
    assert not is_whole(replace(RUNNING, machines=plan(2).machines), [machine("m1")], running)


def test_what_was_promised_for_less_goes() -> None:
    """Whether a loss is survived depends on the demand; that was proved for another one."""
    assert stay(another(1.0), rate=3.5, before=3.0, promises=True) is None
    assert stay(another(1.0), rate=3.0, before=3.5, promises=True) is not None


def test_what_keeps_other_promises_goes() -> None:
    assert stay(another(1.0, unkept=("m does not survive a machine",))) is None


def test_the_same_plan_again_takes_the_place_of_the_one_before() -> None:
    assert stay(replace(RUNNING, notes=("newer",))) is None
