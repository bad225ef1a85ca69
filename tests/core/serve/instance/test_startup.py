"""Who is missing while an instance starts."""

from __future__ import annotations

from coral.core.serve.instance.startup import Startup
from coral.testing.instance import stages
from coral.types.stage import InstanceSpec, KvCapacity

CAPACITY = KvCapacity(blocks=8, block_size=8, bytes=1)


def startup(*, appeared: int = 4, loaded: int = 4) -> Startup:
    placement = stages(cuts=(1, 2, 3), nodes=(1, 2, 1), engine="mock")
    spec = InstanceSpec(
        instance="instance",
        generation=1,
        model="model",
        phase="mixed",
        stages=placement,
        expected_output_tokens=1,
        max_model_len=8,
    )
    one = Startup(spec)
    one.addresses = {node: f"ipc:///{node}" for node in list(one.specs)[:appeared]}
    one.capacities = dict.fromkeys(list(one.specs)[:loaded], CAPACITY)
    return one


def test_who_has_not_appeared_is_named_before_who_waits_for_it() -> None:
    one = startup(appeared=3, loaded=3)
    assert "did not appear: s2n0" in one.missing()
    assert one.suspect() == "s2n0"


def test_who_loads_for_too_long_is_named() -> None:
    one = startup(loaded=3)
    assert "did not finish loading: s2n0" in one.missing()
    assert one.suspect() == "s2n0"


def test_whom_all_others_do_not_reach_is_named_though_it_has_connected_itself() -> None:
    one = startup()
    one.wired = {"s0n0", "s2n0"}
    one.unreached = {"s1n0": ("s2n0",), "s1n1": ("s2n0",)}
    assert one.missing() == "did not connect: s1n0 (does not reach s2n0), s1n1 (does not reach s2n0)"
    assert one.suspect() == "s2n0"


def test_where_it_could_be_several_nobody_is_accused() -> None:
    one = startup()
    one.wired = {"s1n0", "s1n1"}
    one.unreached = {"s0n0": ("s1n0",), "s2n0": ("s0n0",)}
    assert one.suspect() == ""
    assert startup(appeared=2, loaded=2).suspect() == ""
    assert startup().suspect() == ""
