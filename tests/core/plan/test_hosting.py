"""Rows and packing against exhaustive search."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from coral.core.plan.hosting import hosting
from coral.core.plan.packing import Bin, Item, pack
from coral.core.plan.supply import Lot
from coral.types.hardware import Domain, NodeType

HOME = Domain(cloud="c", region="r")


def fits(nodes: Sequence[int], machines: Sequence[int]) -> bool:
    """Exhaustively: can every node have its GPUs on one machine?"""
    ordered = tuple(sorted(nodes, reverse=True))

    @cache
    def place(at: int, free: tuple[int, ...]) -> bool:
        if at == len(ordered):
            return True
        for room in set(free):
            if room >= ordered[at]:
                left = list(free)
                left.remove(room)
                if place(at + 1, tuple(sorted([*left, room - ordered[at]]))):
                    return True
        return False

    return place(0, tuple(sorted(machines)))


def lots(machines: Sequence[int]) -> list[Lot]:
    return [
        Lot(
            domain=HOME,
            gpu="x",
            gpus=gpus,
            machine_type=f"x.{gpus}",
            market="on_demand",
            price_usd_h=1.0,
            held=False,
            limit=machines.count(gpus),
        )
        for gpus in sorted(set(machines))
    ]


def rows_hold(nodes: Sequence[int], machines: list[int]) -> bool:
    kinds = [NodeType("x", size) for size in sorted(set(nodes))]
    have = lots(machines)
    rules = hosting(kinds, have, slices=True)
    count = np.array([list(nodes).count(kind.count) for kind in kinds], dtype=float)
    return bool((rules.weights @ count <= rules.room(have) + 1e-9).all())


def packs(nodes: Sequence[int], machines: Sequence[int]) -> bool:
    items = [Item(key=str(i), domain=HOME, gpu="x", count=size) for i, size in enumerate(nodes)]
    bins = [Bin(key=str(i), domain=HOME, gpu="x", gpus=gpus) for i, gpus in enumerate(machines)]
    packing = pack(items, bins)
    used = {one.key: 0 for one in bins}
    for item in items:
        if item.key in packing.where:
            used[packing.where[item.key]] += item.count
    assert all(used[one.key] == one.used <= one.gpus for one in packing.bins)
    return not packing.left


@pytest.mark.parametrize("machine_sizes", [(1, 2, 4, 8, 16), (1, 3, 6, 10, 5)])
def test_rows_and_first_fit_decreasing_are_exact(machine_sizes: tuple[int, ...]) -> None:
    draw = random.Random(1)
    met = 0
    for _ in range(2000):
        machines = [draw.choice(machine_sizes) for _ in range(draw.randint(1, 6))]
        nodes: list[int] = []
        while draw.random() < 0.97 and sum(nodes) < sum(machines):
            nodes.append(draw.choice((1, 2, 4, 8)))
        expected = fits(nodes, machines)
        met += expected
        assert packs(nodes, machines) == expected, (nodes, machines)
        if nodes:
            assert rows_hold(nodes, machines) == expected, (nodes, machines)
    assert 200 < met < 1800


def test_the_total_of_gpus_is_not_enough() -> None:
    assert not rows_hold([4, 4], [2, 2, 2, 2])
    assert not packs([4, 4], [2, 2, 2, 2])


def test_a_node_larger_than_every_machine_is_not_free() -> None:
    assert not rows_hold([8], [4, 4])


def test_whole_nodes_take_machines_of_their_size() -> None:
    kinds = [NodeType("x", 2), NodeType("x", 4)]
    rules = hosting(kinds, lots([2, 4, 4]), slices=False)
    np.testing.assert_array_equal(rules.weights, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(rules.room(lots([2, 4, 4])), [1, 2])


def test_sizes_that_do_not_divide_take_whole_machines() -> None:
    """A node of 3 GPUs shares nothing, so that first fit stays exact for the others."""
    kinds = [NodeType("x", 1), NodeType("x", 2), NodeType("x", 3)]
    have = lots([3, 3, 4])
    rules = hosting(kinds, have, slices=True)
    np.testing.assert_array_equal(rules.weights, [[1, 2, 0], [0, 2, 0], [0, 0, 1]])
    np.testing.assert_array_equal(rules.room(have), [10, 8, 2])
    items = [
        Item(key="a", domain=HOME, gpu="x", count=3, whole=True),
        Item(key="b", domain=HOME, gpu="x", count=1),
    ]
    packing = pack(items, [Bin(key="m", domain=HOME, gpu="x", gpus=3)])
    assert [item.key for item in packing.left] == ["b"]
    assert packing.where == {"a": "m"}


def test_many_nodes_on_many_machines_take_no_time() -> None:
    """40,000 nodes on 20,000 machines: a search through all machines for each node would take minutes."""
    items = [Item(key=f"s{i}", domain=HOME, gpu="x", count=1 << i % 3) for i in range(30_000)]
    items += [Item(key=f"w{i}", domain=HOME, gpu="x", count=8, whole=True) for i in range(10_000)]
    bins = [Bin(key=f"b{i}", domain=HOME, gpu="x", gpus=8) for i in range(20_000)]
    started = time.process_time()
    packing = pack(items, bins)
    assert time.process_time() - started < 10
    assert not packing.left
    assert sum(one.used for one in packing.bins) == 10_000 * 8 + 10_000 * (1 + 2 + 4)
