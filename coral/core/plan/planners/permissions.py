"""What a baseline's replicas may be: a template library and a view cut down to it.

Every restriction here is hereditary (any part of an allowed set of nodes is allowed), so the reductions
that are lossless for a whole library stay lossless for what is left of it. The one exception are
pipelines inside a machine, whose parts would need slices: all of their rows count as irreducible.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from coral.core.plan.hosting import is_power_of_two
from coral.hookspecs.planner import Library, TemplateTable, View
from coral.types.hardware import Node, NodeType
from coral.types.model import Phase
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan, RunningInstance


class Permissions(Struct, frozen=True, kw_only=True):
    """A replica is always on GPUs of one model. All nodes of one type, unless `mix_sizes`."""

    multi_node: bool
    """Several nodes, each on any machine of the domain."""
    pipelines_in_machine: bool
    """Several nodes on one machine: stages and data parallel members inside it, not only TP."""
    mix_sizes: bool
    """Nodes of several sizes in one replica."""
    slices: bool
    """A node may be a part of a machine, where `plan.slices` says so too."""


class Restricted:
    """A `coral.hookspecs.planner.Library` of the templates of another that are permitted.

    A pipeline inside a machine is shown to the allocation as one node of all its GPUs; `realized` puts its
    real placement into the plan, `seen` hides it in what runs.
    """

    def __init__(self, library: Library, permissions: Permissions) -> None:
        self._library = library
        self._permissions = permissions
        self._tables: dict[tuple[str, Phase], TemplateTable] = {}
        self._rows: dict[tuple[str, Phase], list[int]] = {}
        self._joined: dict[tuple[str, Phase], dict[int, NodeType]] = {}
        self._real: dict[str, Template] = {}

    def table(self, model: str, phase: Phase) -> TemplateTable:
        """Raises LibraryError where the library holds nothing for it."""
        if (model, phase) not in self._tables:
            self._tables[model, phase] = self._cut(model, phase)
        return self._tables[model, phase]

    def template(self, model: str, phase: Phase, row: int) -> Template:
        self.table(model, phase)
        real = self._library.template(model, phase, self._rows[model, phase][row])
        kind = self._joined[model, phase].get(row)
        if kind is None:
            return real
        self._real[real.id] = real
        return _joined(real, kind)

    def realized(self, plan: Plan) -> Plan:
        """The plan with the placements of pipelines inside a machine."""
        instances = tuple(
            replace(one, template=self._real.get(one.template.id, one.template)) for one in plan.instances
        )
        return replace(plan, instances=instances)

    def seen(self, view: View) -> View:
        """The view with what runs as far as it is permitted, and slices where both sides allow them."""
        running = tuple(one for one in map(self._seen, view.running) if one is not None)
        slices = view.options.slices and self._permissions.slices
        return replace(view, running=running, options=replace(view.options, slices=slices))

    def _seen(self, one: RunningInstance) -> RunningInstance | None:
        nodes = one.template.nodes
        single = sum(nodes.values()) == 1
        alike = len(nodes) == 1 or (self._permissions.mix_sizes and len({k.gpu for k in nodes}) == 1)
        if not alike:
            return None
        machines = {node.machine_id for node in one.nodes}
        inside = len(machines) == 1 or (not machines and not self._permissions.multi_node)
        if not single and self._permissions.pipelines_in_machine and inside:
            kind = NodeType(next(iter(nodes)).gpu, sum(kind.count * n for kind, n in nodes.items()))
            self._real[one.template.id] = one.template
            devices = tuple(device for node in one.nodes for device in node.devices)
            held = tuple(Node(machine_id=name, node_type=kind, devices=devices) for name in machines)
            return replace(one, template=_joined(one.template, kind), nodes=held)
        spread = self._permissions.pipelines_in_machine and self._permissions.slices  # where room was
        return one if single or spread or self._permissions.multi_node else None

    def _cut(self, model: str, phase: Phase) -> TemplateTable:
        full, permitted = self._library.table(model, phase), self._permissions
        alike = _one_gpu(full) if permitted.mix_sizes else (full.usage > 0).sum(axis=1) == 1
        nodes = full.usage.sum(axis=1)
        plain = np.flatnonzero(alike & (permitted.multi_node | (nodes == 1)))
        inside = _inside(full, np.flatnonzero(alike & (nodes > 1))) if permitted.pipelines_in_machine else {}
        kinds = tuple(dict.fromkeys((*full.node_types, *inside)))
        usage = np.zeros((len(plain) + len(inside), len(kinds)), dtype=np.int16)
        usage[: len(plain), : len(full.node_types)] = full.usage[plain]
        for at, kind in enumerate(inside):
            usage[len(plain) + at, kinds.index(kind)] = 1
        rows = [*plain.tolist(), *inside.values()]
        self._rows[model, phase] = rows
        self._joined[model, phase] = {len(plain) + at: kind for at, kind in enumerate(inside)}
        alone = np.r_[full.irreducible[plain], np.ones(len(inside), dtype=np.bool_)].astype(np.bool_)
        return TemplateTable(
            node_types=kinds, usage=usage, throughput=full.throughput[rows], irreducible=alone
        )


def one_way(view: View, phases: tuple[Phase, ...]) -> View:
    """The view with models that may be served either way, mixed or with phases apart, served by `phases`:
    for planners that do not choose between the two."""
    models = tuple(
        replace(one, phases=phases) if "mixed" in one.phases and len(one.phases) > 1 else one
        for one in view.models
    )
    return replace(view, models=models)


def _one_gpu(table: TemplateTable) -> NDArray[np.bool_]:
    gpus = sorted({kind.gpu for kind in table.node_types})
    per_gpu = np.array(
        [
            table.usage[:, [i for i, kind in enumerate(table.node_types) if kind.gpu == gpu]].sum(axis=1)
            for gpu in gpus
        ]
    ).reshape(len(gpus), len(table.usage))
    return np.asarray((per_gpu > 0).sum(axis=0) == 1)


def _inside(table: TemplateTable, rows: NDArray[np.int64]) -> dict[NodeType, int]:
    """The best of these rows for every machine size that holds it whole, where it beats a single node."""
    counts = np.array([kind.count for kind in table.node_types], dtype=np.int64)
    largest = {gpu: max(k.count for k in table.node_types if k.gpu == gpu) for gpu in _gpus(table)}
    best: dict[NodeType, float] = {}
    nodes = table.usage.sum(axis=1)
    for row in np.flatnonzero(nodes == 1):
        kind = table.node_types[int(np.argmax(table.usage[row]))]
        best[kind] = max(best.get(kind, 0.0), float(table.throughput[row]))
    found: dict[NodeType, int] = {}
    for row in rows:
        gpu = table.node_types[int(np.argmax(table.usage[row] > 0))].gpu
        kind = NodeType(gpu, int(table.usage[row] @ counts))
        fits = kind in table.node_types or (is_power_of_two(kind.count) and kind.count <= largest[gpu])
        if fits and table.throughput[row] > best.get(kind, 0.0):
            best[kind], found[kind] = float(table.throughput[row]), int(row)
    return dict(sorted(found.items()))


def _gpus(table: TemplateTable) -> set[str]:
    return {kind.gpu for kind in table.node_types}


def _joined(real: Template, kind: NodeType) -> Template:
    node = StageNode(node_type=kind, throughput=real.throughput)
    layers = real.placement.stages[-1].end_layer
    whole = Placement(stages=(Stage(first_layer=0, end_layer=layers, nodes=(node,)),))
    return replace(real, placement=whole)
