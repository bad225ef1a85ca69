from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coral.core.operate.claiming import claim
from coral.core.operate.slots import Slots, Wanted, free_slots
from coral.types.hardware import Domain, Machine, MachineType, Market, Node, NodeType
from coral.types.placement import Placement, Stage, StageNode

HERE = Domain("local", "here")
THERE = Domain("local", "there")


def placement(*nodes: tuple[str, int]) -> Placement:
    """One stage a node."""
    return Placement(
        stages=tuple(
            Stage(
                first_layer=i, end_layer=i + 1, nodes=(StageNode(node_type=NodeType(g, k), throughput=1.0),)
            )
            for i, (g, k) in enumerate(nodes)
        )
    )


def want(placement: Placement, domain: Domain, market: Market | None = None) -> Wanted:
    return Wanted(placement=placement, domain=domain, market=market)


def slots(*free: tuple[str, int], domain: Domain = HERE) -> list[Slots]:
    return [
        Slots(machine_id=f"m{i}", gpu=gpu, domain=domain, free=tuple(range(n)))
        for i, (gpu, n) in enumerate(free)
    ]


def test_a_node_takes_devices_of_one_machine_with_its_gpu() -> None:
    [got] = claim([want(placement(("A", 2), ("B", 1)), HERE)], slots(("B", 2), ("A", 1), ("A", 4)))
    assert got is not None
    assert [node.machine_id for node in got.nodes] == ["m2", "m0"]
    assert got.nodes[0].devices == (0, 1)


def test_the_tightest_machine_is_taken() -> None:
    [got] = claim([want(placement(("A", 1)), HERE)], slots(("A", 4), ("A", 1)))
    assert got is not None
    assert got.machines == ("m1",)


def test_domains_are_kept() -> None:
    assert claim([want(placement(("A", 1)), THERE)], slots(("A", 4))) == [None]


def test_what_fits_is_claimed_although_all_together_do_not_fit() -> None:
    got = claim([want(placement(("A", 3)), HERE), want(placement(("A", 2)), HERE)], slots(("A", 4)))
    assert got[0] is not None
    assert got[1] is None


def test_sizes_that_do_not_divide_are_searched() -> None:
    """Tightest first puts 3 into the 4 and then has no room for 2+2; the other way round fits."""
    wanted = [want(placement(("A", 3), ("A", 2), ("A", 2)), HERE)]
    [got] = claim(wanted, slots(("A", 4), ("A", 3)))
    assert got is not None
    [got] = claim(wanted, slots(("A", 5), ("A", 4)))
    assert got is not None


def test_free_slots_leave_out_what_is_held() -> None:
    kind = MachineType(name="quad", gpu="A", gpus=4)
    machine = Machine(id="m", machine_type=kind, domain=HERE, price_usd_h=1.0)
    held = [Node(machine_id="m", node_type=NodeType("A", 2), devices=(0, 2))]
    assert free_slots([machine], held)[0].free == (1, 3)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
def test_claims_match_brute_force_and_never_overlap(sizes: list[int], free: list[int]) -> None:
    possible = any(
        all(sum(s for s, m in zip(sizes, choice, strict=True) if m == i) <= f for i, f in enumerate(free))
        for choice in itertools.product(range(len(free)), repeat=len(sizes))
    )
    [got] = claim([want(placement(*(("A", size) for size in sizes)), HERE)], slots(*(("A", f) for f in free)))
    assert (got is not None) == possible
    if got is not None:
        devices = [(node.machine_id, device) for node in got.nodes for device in node.devices]
        assert len(set(devices)) == len(devices) == sum(sizes)
        assert all(device < free[int(machine[1:])] for machine, device in devices)


def test_a_small_node_does_not_take_the_last_place_of_a_large_one() -> None:
    """Two GPUs are free now; one more is to come, or to be free when a running instance has gone."""
    wanted = [want(placement(("A", 1)), HERE), want(placement(("A", 2)), HERE)]
    now, later = slots(("A", 2)), slots(("A", 2), ("A", 1))
    small, large = claim(wanted, now)
    assert small is not None
    assert large is None
    small, large = claim(wanted, now, later=later)
    assert small is None
    assert large is not None


def test_where_not_all_will_have_room_what_fits_starts() -> None:
    wanted = [want(placement(("A", 1)), HERE), want(placement(("A", 2)), HERE)]
    small, large = claim(wanted, slots(("A", 2)), later=slots(("A", 2)))
    assert small is not None
    assert large is None


def test_an_instance_is_on_machines_of_the_market_it_is_planned_for() -> None:
    (found,) = slots(("A", 1))
    wanted = [want(placement(("A", 1)), HERE)]
    spot = replace(found, market="spot")
    assert claim([want(placement(("A", 1)), HERE, "on_demand")], [spot]) == [None]
    [got] = claim([want(placement(("A", 1)), HERE, "spot")], [spot])
    assert got is not None
    [got] = claim(wanted, [spot])
    assert got is not None


def test_nodes_of_one_instance_share_a_machine_where_there_is_room() -> None:
    """The tightest place of each node would spread it over two."""
    wanted = [want(placement(("A", 2), ("A", 1)), HERE)]
    [got] = claim(wanted, slots(("A", 2), ("A", 1), ("A", 4)))
    assert got is not None
    assert got.machines == ("m2",)
    two = [*wanted, want(placement(("A", 2), ("A", 1)), HERE)]
    first, second = claim(two, slots(("A", 2), ("A", 1), ("A", 4)))
    assert first is not None
    assert second is not None
    assert sorted(len(one.machines) for one in (first, second)) == [1, 2], "as few as need be are spread"


def test_no_instance_is_refused_for_the_sake_of_one_machine() -> None:
    wanted = [want(placement(("A", 2), ("A", 2)), HERE), want(placement(("A", 4)), HERE)]
    claims = claim(wanted, slots(("A", 4), ("A", 2), ("A", 2)))
    assert [one is not None and len(one.machines) for one in claims] == [2, 1]
