from __future__ import annotations

import json

from coral.core.plan.document import document
from coral.testing.tables import HOME
from coral.testing.worlds import pipeline
from coral.types.hardware import NodeType
from coral.types.placement import Placement, Stage, StageNode
from coral.types.plan import Plan, PlannedInstances, PlannedMachines, Service


def test_the_layout_is_stable() -> None:
    one = StageNode(node_type=NodeType("a", 1), throughput=2.0)
    two = StageNode(node_type=NodeType("b", 2), throughput=3.0, tp=2)
    stages = (
        Stage(first_layer=0, end_layer=3, nodes=(one, two, one)),
        Stage(first_layer=3, end_layer=4, nodes=(two,)),
    )
    template = pipeline("m", "mixed", [NodeType("a", 1)], 3.0)
    template = type(template)(
        id="t", model="m", phase="mixed", slo=template.slo, placement=Placement(stages=stages), throughput=3.0
    )
    plan = Plan(
        planner="coral",
        machines=(
            PlannedMachines(machine_type="a.1", domain=HOME, market="spot", price_usd_h=1.5, kept=1, new=1),
        ),
        instances=(PlannedInstances(template=template, domain=HOME, count=2, kept=1),),
        services=(Service(model="m", phase="mixed", demand=8.0, served=6.0, capacity=6.0),),
        price_usd_h=3.0,
        initialization_usd_h=0.0,
        certificate=None,
        notes=("a note",),
    )
    assert json.loads(json.dumps(document(plan))) == {
        "format": 1,
        "planner": "coral",
        "satisfied": False,
        "price_usd_h": 3.0,
        "initialization_usd_h": 0.0,
        "certificate": None,
        "machines": [
            {
                "machine_type": "a.1",
                "domain": "here/one",
                "market": "spot",
                "price_usd_h": 1.5,
                "kept": 1,
                "new": 1,
            }
        ],
        "instances": [
            {
                "model": "m",
                "phase": "mixed",
                "template": "t",
                "domain": "here/one",
                "market": None,
                "count": 2,
                "kept": 1,
                "throughput": 3.0,
                "stages": [
                    {
                        "first_layer": 0,
                        "end_layer": 3,
                        "layers": 3,
                        "throughput": 7.0,
                        "nodes": [
                            {"node_type": "a x1", "count": 2, "tp": 1, "throughput": 2.0},
                            {"node_type": "b x2", "count": 1, "tp": 2, "throughput": 3.0},
                        ],
                    },
                    {
                        "first_layer": 3,
                        "end_layer": 4,
                        "layers": 1,
                        "throughput": 3.0,
                        "nodes": [{"node_type": "b x2", "count": 1, "tp": 2, "throughput": 3.0}],
                    },
                ],
            }
        ],
        "services": [
            {
                "model": "m",
                "phase": "mixed",
                "unit": "requests/s",
                "demand": 8.0,
                "served": 6.0,
                "capacity": 6.0,
                "fraction": 0.75,
            }
        ],
        "unkept": [],
        "notes": ["a note"],
    }
