from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.plan.planners.helix import build
from coral.core.plan.planners.helix_options import HelixOptions
from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.errors import UsageError
from coral.hookspecs.solver import Solver
from coral.testing.tables import SHAPE, TableLibrary, held, offer, spec, view
from coral.types.hardware import NodeType
from coral.types.model import Phase
from coral.types.plan import Plan, RunningInstance

LAYERS = SHAPE.layers


class Rated(TableLibrary):
    """Small nodes hold at most half of the layers: no template of one node, only tables."""

    def __init__(self) -> None:
        super().__init__({"a": {"small": 1e-9, "big": 1e-9}})
        held_layers = np.arange(1, LAYERS + 1)
        rate = np.zeros((2, len(ROLES), LAYERS, 2))
        rate[..., 0] = np.where(held_layers <= LAYERS // 2, 4.0 / held_layers, 0.0)
        rate[..., 1] = 12.0 / held_layers
        self.given = ThroughputTable(
            node_types=(NodeType("small", 1), NodeType("big", 1)),
            rate=rate,
            tp=np.ones(rate.shape, dtype=np.int8),
        )

    def rates(self, model: str, phase: Phase) -> ThroughputTable:
        return self.given


def planned(solver: Solver, demand: float, small: int, big: int, **options: object) -> Plan:
    offers = [offer("small", 1.0, small), offer("big", 3.5, big)]
    planner = build(HelixOptions.model_validate(options))
    return planner.plan(view([spec("a", demand)], offers), Rated(), solver)


def test_layers_are_spread_over_nodes_that_cannot_hold_the_model(highs: Solver) -> None:
    plan = planned(highs, 2.0, small=10, big=0)
    (one,) = plan.instances
    assert one.template.placement.picture() == "[0,2) small x1 | [2,4) small x1"
    assert plan.satisfied
    assert plan.price_usd_h == pytest.approx(2.0)


def test_unlike_nodes_share_a_placement(highs: Solver) -> None:
    plan = planned(highs, 4.0, small=2, big=1, clusters={"a": {"small x1": 2, "big x1": 1}})
    (one,) = plan.instances
    assert one.template.throughput == pytest.approx(4.0)
    assert {kind.gpu for kind in one.template.nodes} == {"small", "big"}
    assert any("a flow of 4, at most" in note for note in plan.notes)


def test_a_cluster_is_used_for_the_greatest_flow_whatever_the_demand(highs: Solver) -> None:
    plan = planned(highs, 1.0, small=10, big=10, clusters={"a/mixed": {"small x1": 4}})
    (one,) = plan.instances
    assert one.template.throughput == pytest.approx(4.0)


def test_more_nodes_are_taken_until_the_demand_is_served(highs: Solver) -> None:
    plan = planned(highs, 6.3, small=20, big=0)
    assert plan.satisfied
    assert plan.price_usd_h == pytest.approx(8.0)  # 4 a stage, each 2.0


def test_what_is_missing_is_said(highs: Solver) -> None:
    plan = planned(highs, 6.0, small=3, big=0)
    (service,) = plan.services
    assert service.served == pytest.approx(2.0)
    assert not plan.satisfied


def test_what_runs_is_kept_though_no_library_has_it(highs: Solver) -> None:
    before = planned(highs, 2.0, small=10, big=0).instances[0]
    running = RunningInstance(id="i", template=before.template, domain=before.domain)
    world = view(
        [spec("a", 3.5)],
        [offer("small", 1.0, 10)],
        [held("1", "small", 1.0), held("2", "small", 1.0)],
        [running],
    )
    plan = build(HelixOptions()).plan(world, Rated(), highs)
    assert sum(one.kept for one in plan.instances) == 1
    assert [(m.kept, m.new) for m in plan.machines] == [(2, 2)]
    assert plan.satisfied
    again = build(HelixOptions()).plan(replace(world, models=(spec("a", 1.0),)), Rated(), highs)
    assert [(m.kept, m.new) for m in again.machines] == [(2, 0)]


@pytest.mark.parametrize(
    ("text", "words"), [("small", "not a node type"), ("other x1", "no node type other x1")]
)
def test_a_cluster_of_nodes_that_are_not_there(highs: Solver, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(highs, 1.0, small=1, big=1, clusters={"a": {text: 1}})


def test_a_cluster_of_a_model_that_is_not_asked_for_is_refused(highs: Solver) -> None:
    with pytest.raises(UsageError, match="did you mean 'a/mixed'"):
        planned(highs, 1.0, small=1, big=1, clusters={"a/mixd": {"small x1": 1}})
