"""Flows against cuts, stages against every placement tried out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from coral.core.generate.layers import roles_of
from coral.core.plan.budget import Budget
from coral.core.plan.planners.flow import Span, max_flow, work_bound
from coral.core.plan.planners.stage_search import searched_stages
from coral.core.plan.planners.stages import best_stages, flow_bound, placed, without_idle
from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.hookspecs.solver import Solver
from coral.types.hardware import NodeType


def budget() -> Budget:
    return Budget(gap=0.0, time_limit_s=20.0)


def span(first: int, end: int, throughput: float) -> Span:
    return Span(first_layer=first, end_layer=end, throughput=throughput)


class TestMaxFlow:
    def test_a_chain_does_what_its_slowest_does(self, highs: Solver) -> None:
        assert max_flow([span(0, 3, 5.0), span(3, 8, 2.0)], 8, highs, budget()) == pytest.approx(2.0)

    def test_members_of_a_stage_add_up(self, highs: Solver) -> None:
        spans = [span(0, 3, 5.0), span(0, 3, 4.0), span(3, 8, 2.0), span(3, 8, 3.0)]
        assert max_flow(spans, 8, highs, budget()) == pytest.approx(5.0)

    def test_a_node_may_do_a_part_of_its_layers(self, highs: Solver) -> None:
        spans = [span(0, 4, 3.0), span(2, 8, 2.0), span(4, 8, 0.5)]
        assert max_flow(spans, 8, highs, budget()) == pytest.approx(2.5)

    def test_layers_that_nobody_holds_let_nothing_through(self, highs: Solver) -> None:
        assert max_flow([span(0, 3, 5.0), span(4, 8, 2.0)], 8, highs, budget()) == 0.0
        assert max_flow([], 8, highs, budget()) == 0.0

    @pytest.mark.parametrize("seed", range(6))
    def test_equal_to_the_least_cut(self, highs: Solver, seed: int) -> None:
        draw = np.random.default_rng(seed)
        layers = 6
        spans = []
        for _ in range(7):
            first = int(draw.integers(0, layers))
            spans.append(span(first, int(draw.integers(first + 1, layers + 1)), float(draw.uniform(1, 9))))
        assert max_flow(spans, layers, highs, budget()) == pytest.approx(least_cut(spans, layers))


def least_cut(spans: list[Span], layers: int) -> float:
    """Over every set of nodes whose removal leaves no path from source to sink."""
    best = float("inf")
    for count in range(len(spans) + 1):
        for gone in combinations(range(len(spans)), count):
            left = [one for i, one in enumerate(spans) if i not in gone]
            reached = [one for one in left if one.first_layer == 0]
            for one in reached:
                reached += [
                    o for o in left if o not in reached and o.first_layer <= one.end_layer < o.end_layer
                ]
            if not any(one.end_layer == layers for one in reached):
                best = min(best, sum(spans[i].throughput for i in gone))
    return best


def random_table(draw: np.random.Generator, stages: int, layers: int, kinds: int) -> ThroughputTable:
    rate = np.zeros((stages, len(ROLES), layers, kinds))
    for kind in range(kinds):
        for role in range(len(ROLES)):
            held = draw.uniform(5, 20) / np.arange(1, layers + 1) * draw.uniform(0.9, 1.1, layers)
            held[draw.integers(1, layers + 1) :] = 0.0
            rate[:, role, :, kind] = np.minimum.accumulate(held)
    types = tuple(NodeType(f"g{kind}", 1) for kind in range(kinds))
    return ThroughputTable(node_types=types, rate=rate, tp=np.ones(rate.shape, dtype=np.int8))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in combinations(range(1, total), parts - 1):
        edges = (0, *cuts, total)
        yield tuple(b - a for a, b in pairwise(edges))


def best_by_trial(table: ThroughputTable, stages: int, nodes: list[int]) -> float:
    """Every cut of the layers and every assignment of nodes to stages, or to none."""
    roles = [ROLES.index(role) for role in roles_of(stages)]
    best = 0.0
    for cut in compositions(table.layers, stages):
        for where in product(range(stages + 1), repeat=len(nodes)):
            sums = [0.0] * stages
            for kind, stage in zip(nodes, where, strict=True):
                if stage < stages:
                    sums[stage] += table.rate[stages - 1, roles[stage], cut[stage] - 1, kind]
            best = max(best, min(sums))
    return best


@pytest.mark.parametrize(("seed", "stages"), list(product(range(4), (1, 2, 3))))
def test_stages_are_the_best_of_all(highs: Solver, seed: int, stages: int) -> None:
    draw = np.random.default_rng(seed)
    table = random_table(draw, 3, 6, 3)
    available = {0: 2, 1: 1, 2: 2}
    nodes = [kind for kind, count in available.items() for _ in range(count)]
    best = best_by_trial(table, stages, nodes)
    found = best_stages(table, stages, available, highs, budget())
    assert (found.flow if found else 0.0) == pytest.approx(best)
    if found is None:
        return
    assert found.flow <= found.bound + 1e-6 <= flow_bound(table, stages, available) + 2e-6
    placement = placed(table, found)
    assert placement.throughput == pytest.approx(found.flow)
    spans = [
        span(stage.first_layer, stage.end_layer, node.throughput)
        for stage in placement.stages
        for node in stage.nodes
    ]
    assert max_flow(spans, table.layers, highs, budget()) == pytest.approx(found.flow)
    assert found.flow <= work_bound([s.throughput * (s.end_layer - s.first_layer) for s in spans], 6) + 1e-6
    assert best_stages(table, stages, available, highs, budget(), above=found.flow * 1.01) is None
    near = searched_stages(table, stages, available)
    assert near is not None
    assert 0.7 * best <= near.flow <= best * (1 + 1e-9)
    assert placed(table, near).throughput == pytest.approx(near.flow)
    less = without_idle(table, found, np.ones(3), found.flow * 0.5)
    assert less.flow >= found.flow * 0.5 * (1 - 1e-6)
    assert sum(map(sum, less.nodes)) <= sum(map(sum, found.nodes))
