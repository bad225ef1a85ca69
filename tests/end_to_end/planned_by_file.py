"""A planner that plans what a file says: beside a test's config it changes every template when it is told."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import LocalPath, Options
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.hardware import NodeType
from coral.types.model import ModelSpec
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan, PlannedInstances, PlannedMachines


class Choice(Options):
    file: LocalPath
    """JSON: `name`, `price`, `machines` by type, and `instances`, each with `model`, `phase`, `gpu`, `cuts`
    (where stages of one device each begin and end), `throughput` and `count`."""


class ByFile:
    def __init__(self, file: Path) -> None:
        self._file = file

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        asked = msgspec.json.decode(self._file.read_bytes())
        models = {model.name: model for model in view.models}
        (domain,) = {offer.domain for offer in view.offers}
        return Plan(
            planner="by-file",
            machines=tuple(
                PlannedMachines(
                    machine_type=name, domain=domain, market="on_demand", price_usd_h=1.0, kept=0, new=count
                )
                for name, count in asked["machines"].items()
            ),
            instances=tuple(
                PlannedInstances(
                    template=template(one, models[one["model"]]), domain=domain, count=one["count"]
                )
                for one in asked["instances"]
            ),
            services=(),
            price_usd_h=asked["price"],
            initialization_usd_h=0.0,
            certificate=None,
            notes=(asked["name"],),
        )


def template(one: Mapping[str, Any], model: ModelSpec) -> Template:
    node = StageNode(node_type=NodeType(one["gpu"], 1), throughput=one["throughput"])
    stages = [Stage(first_layer=a, end_layer=b, nodes=(node,)) for a, b in pairwise(one["cuts"])]
    name = "-".join(map(str, one["cuts"]))
    return Template(
        id=f"{model.name}-{one['phase']}-{name}",
        model=model.name,
        phase=one["phase"],
        slo=model.slo,
        placement=Placement(stages=tuple(stages)),
        throughput=one["throughput"],
    )


@hookimpl
def coral_planners() -> list[Component]:
    return [
        Component(
            name="by-file",
            summary="what a file says",
            options=Choice,
            build=lambda options: ByFile(options.file),
        )
    ]
