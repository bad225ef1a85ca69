"""The closed form against brute force: every assignment of nodes to stages, every composition of layers.

`CORAL_PLACEMENT_INSTANCES` raises how many random instances are compared.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from coral.core.config.schema import GenerateSection
from coral.core.generate.combinations import MAX_NODES, binomials, count_within, rank_without, within
from coral.core.generate.layers import placement
from coral.core.generate.search import Search, search
from coral.core.profile.throughput import ThroughputTable
from coral.types.hardware import NodeType
from coral.types.program import Floats
from tests.core.generate.placement_case import best_of_subsets, brute_force, random_rates

INSTANCES = int(os.environ.get("CORAL_PLACEMENT_INSTANCES", "4000"))
PARTS = 10
CASES_PER_TABLE = 10


@pytest.mark.parametrize("seed", range(PARTS))
def test_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    done = 0
    while done < INSTANCES // PARTS:
        layers, types = int(rng.integers(1, 8)), int(rng.integers(1, 5))
        nodes = int(rng.choice([1, 2, 3, 4, 5], p=[0.1, 0.3, 0.35, 0.22, 0.03]))
        stages = int(rng.integers(1, nodes + 1))
        rate = random_rates(rng, stages, layers, types)
        found = search(
            Search(rate=rate, memory_bytes=np.ones(types), memory_limit=float(nodes), max_nodes=nodes)
        )
        row_of = {tuple(usage): row for row, usage in enumerate(found.usage.tolist())}
        for _ in range(CASES_PER_TABLE):
            members = tuple(sorted(rng.integers(0, types, nodes).tolist()))
            expected = brute_force(rate, members)
            answer = best_of_subsets(found, members)
            assert answer == pytest.approx(expected, rel=1e-9, abs=1e-12), (seed, done, members)
            row = row_of.get(tuple(np.bincount(members, minlength=types).tolist()))
            if row is not None:
                _check_placement(rate, members, found.stage_of[row][:nodes].tolist(), expected)
            done += 1


def _check_placement(rate: Floats, members: tuple[int, ...], stage_of: list[int], expected: float) -> None:
    kinds = tuple(NodeType(f"gpu{c}", 1) for c in range(rate.shape[3]))
    table = ThroughputTable(node_types=kinds, rate=rate, tp=np.ones(rate.shape, np.int8))
    placed = placement(table, members, stage_of)
    assert placed.throughput == pytest.approx(expected, rel=1e-9)
    assert [stage.first_layer for stage in placed.stages] == [0, *(s.end_layer for s in placed.stages[:-1])]
    assert placed.stages[-1].end_layer == rate.shape[2]
    assert all(stage.layers >= 1 and stage.nodes for stage in placed.stages)
    assert sum(placed.nodes.values()) == len(members)
    assert all(node.throughput > 0 for stage in placed.stages for node in stage.nodes)


@pytest.mark.parametrize(("types", "size"), [(1, 1), (1, 4), (3, 2), (4, 5), (7, 3)])
def test_all_multisets_come_in_order_of_rank(types: int, size: int) -> None:
    rows, rank = within(np.ones(types), float(size), size)
    assert sorted(map(tuple, rows.tolist())) == sorted(
        itertools.combinations_with_replacement(range(types), size)
    )
    binomial = binomials(types)
    assert [rank_without(row, size, -1, binomial) for row in rows] == rank.tolist()
    assert rank.tolist() == list(range(len(rows)))


def test_only_multisets_within_the_limit_are_there() -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(1, 9, 5).astype(float)
    all_rows, _ = within(weight, np.inf, 4)
    rows, rank = within(weight, 20.0, 4)
    assert rank.tolist() == np.flatnonzero(weight[all_rows].sum(axis=1) <= 20).tolist()
    assert np.array_equal(rows, all_rows[rank])
    assert count_within(weight, 20.0, 4) == sum(len(within(weight, 20.0, n)[0]) for n in range(1, 5))


def test_roles_move_layers_off_the_last_stage() -> None:
    """Two equal nodes; the head costs as much as two layers: the last stage holds two fewer."""
    layers = 12
    j = np.arange(1, layers + 1)
    rate = np.zeros((2, 4, layers, 1))
    rate[1, 0, :, 0] = rate[1, 1, :, 0] = 1 / j
    rate[1, 2, :, 0] = 1 / (j + 2)
    found = search(Search(rate=rate, memory_bytes=np.ones(1), memory_limit=2.0, max_nodes=2))
    assert found.throughput.tolist() == [pytest.approx(1 / 7)]
    table = ThroughputTable(node_types=(NodeType("a", 1),), rate=rate, tp=np.ones(rate.shape, np.int8))
    placed = placement(table, (0, 0), found.stage_of[0][:2].tolist())
    assert [stage.layers for stage in placed.stages] == [7, 5]


def test_the_config_allows_as_many_nodes_as_can_be_solved() -> None:
    (limit,) = [mark.le for mark in GenerateSection.model_fields["max_nodes"].metadata if hasattr(mark, "le")]
    assert limit == MAX_NODES
