"""A plugin beside the config: a planner of as many instances as a file says, of layouts that the file states;
and a listener that notes how they fare.

The file is JSON, written anew by whoever runs the system: by model, a list of `Layout`s. Cuts of layers are
stated outright, so that any layout can be asked for; what it costs is of no interest here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from coral.errors import SolverError
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.hardware import NodeType, Offer
from coral.types.model import ModelSpec, Phase
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan, PlannedInstances, PlannedMachines, Service

CHANGES = "CHAOS_CHANGES"
"""Environment variable that names the file where changes of instances are noted."""
RATE = 1.0
"""Throughput of an instance, in whatever unit: all are alike."""


class Layout(Struct, frozen=True, kw_only=True):
    """`count` instances of `nodes[i]` nodes in stage i, layers cut as evenly as they go.

    `name` tells templates of the same cut apart: another name is another template, so that instances of
    the old one are replaced.
    """

    count: int
    nodes: tuple[int, ...] = (1,)
    phase: Phase = "mixed"
    name: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """Of an instance's state."""

    at_s: float
    instance: str
    before: str
    after: str


class WantedPlanner:
    def __init__(self, file: Path, machines: int) -> None:
        self._file = file
        self._machines = machines

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """Raises SolverError where the file cannot be read."""
        try:
            layouts = msgspec.json.decode(self._file.read_bytes(), type=dict[str, list[Layout]])
        except (OSError, msgspec.DecodeError) as error:
            raise SolverError(f"{self._file}: {error}") from error
        offer = view.offers[0]
        kept = [one for one in view.machines if one.machine_type == offer.machine_type]
        hold = self._machines
        machines = PlannedMachines(
            machine_type=offer.machine_type.name,
            domain=offer.domain,
            market=offer.market,
            price_usd_h=offer.price_usd_h,
            kept=min(len(kept), hold),
            new=max(0, hold - len(kept)),
        )
        instances = [
            PlannedInstances(
                template=template_of(model, offer, layout), domain=offer.domain, count=layout.count
            )
            for model in view.models
            for layout in layouts.get(model.name, [])
            if layout.count
        ]
        return Plan(
            planner="wanted",
            machines=(machines,),
            instances=tuple(instances),
            services=tuple(_services(instances)),
            price_usd_h=hold * offer.price_usd_h,
            initialization_usd_h=0.0,
            certificate=None,
        )


def template_of(model: ModelSpec, offer: Offer, layout: Layout) -> Template:
    kind = NodeType(offer.machine_type.gpu, 1)
    layers, cuts = model.shape.layers, len(layout.nodes)
    at = [layers * i // cuts for i in range(cuts + 1)]
    stages = tuple(
        Stage(
            first_layer=at[i],
            end_layer=at[i + 1],
            nodes=tuple(StageNode(node_type=kind, throughput=RATE / nodes) for _ in range(nodes)),
        )
        for i, nodes in enumerate(layout.nodes)
    )
    cut = "-".join(map(str, layout.nodes))
    return Template(
        id=f"{model.name}/{layout.phase}/{cut}{layout.name}",
        model=model.name,
        phase=layout.phase,
        slo=model.slo,
        placement=Placement(stages=stages),
        throughput=RATE,
    )


def _services(instances: list[PlannedInstances]) -> list[Service]:
    rates: dict[tuple[str, Phase], float] = {}
    for one in instances:
        key = one.template.model, one.template.phase
        rates[key] = rates.get(key, 0.0) + one.count * RATE
    return [
        Service(model=model, phase=phase, demand=rate, served=rate, capacity=rate)
        for (model, phase), rate in rates.items()
    ]


def write_wanted(path: Path, layouts: dict[str, list[Layout]]) -> None:
    """Whole or not at all: the planner may be reading."""
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(layouts))
    new.replace(path)


@hookimpl
def coral_instance_changed(instance: str, model: str, before: str, after: str) -> None:
    """Noted beside the file that is wanted, with the wall time."""
    if CHANGES in os.environ:
        with open(os.environ[CHANGES], "ab") as notes:
            change = Change(at_s=time.time(), instance=instance, before=before, after=after)
            notes.write(msgspec.json.encode(change) + b"\n")


def read_changes(path: Path) -> list[Change]:
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    return [msgspec.json.decode(line, type=Change) for line in whole.splitlines()]


@hookimpl
def coral_planners() -> list[Component]:
    where = "benchmarks.chaos.wanted_options"
    return [
        Component(
            name="wanted", summary="as a file says", options=f"{where}:WantedOptions", build=f"{where}:build"
        )
    ]
