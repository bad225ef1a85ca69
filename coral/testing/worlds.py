"""Random small worlds for planners: libraries of multi-node templates, offers, machines, what runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product

import numpy as np
from msgspec import Struct

from coral.errors import LibraryError
from coral.hookspecs.planner import PlanOptions, TemplateTable, View
from coral.testing.tables import SHAPE, UNIFORM_SLO
from coral.types.hardware import Domain, Machine, MachineType, Node, NodeType, Offer
from coral.types.model import Demand, ModelSpec, Phase, RequestClass
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import RunningInstance

INPUT_TOKENS, OUTPUT_TOKENS = 100.0, 50.0


def pipeline(model: str, phase: Phase, nodes: Sequence[NodeType], throughput: float) -> Template:
    """A template over these nodes, one stage each (the first holds the rest of the layers)."""
    count = len(nodes)
    cuts = [0, *range(SHAPE.layers - count + 1, SHAPE.layers), SHAPE.layers]
    stages = tuple(
        Stage(
            first_layer=cuts[i],
            end_layer=cuts[i + 1],
            nodes=(StageNode(node_type=node, throughput=throughput),),
        )
        for i, node in enumerate(nodes)
    )
    name = "+".join(f"{node.gpu}{node.count}" for node in nodes)
    return Template(
        id=f"{model}-{phase}-{name}",
        model=model,
        phase=phase,
        slo=UNIFORM_SLO,
        placement=Placement(stages=stages),
        throughput=throughput,
    )


class MemoryLibrary:
    """A `coral.hookspecs.planner.Library` of any templates; what is irreducible is worked out exactly."""

    def __init__(self, templates: Iterable[Template]) -> None:
        self.templates: dict[tuple[str, Phase], list[Template]] = {}
        for one in templates:
            self.templates.setdefault((one.model, one.phase), []).append(one)
        self._tables = {key: _table(some) for key, some in self.templates.items()}

    def table(self, model: str, phase: Phase) -> TemplateTable:
        if (model, phase) not in self._tables:
            raise LibraryError(f"no templates of {model}, {phase}", mend="build them")
        return self._tables[model, phase]

    def template(self, model: str, phase: Phase, row: int) -> Template:
        return self.templates[model, phase][row]


def _table(templates: Sequence[Template]) -> TemplateTable:
    kinds = tuple(sorted({kind for one in templates for kind in one.nodes}))
    usage = np.array([[one.nodes.get(kind, 0) for kind in kinds] for one in templates], dtype=np.int16)
    best: dict[tuple[int, ...], float] = {}
    for row, one in zip(usage.tolist(), templates, strict=True):
        best[tuple(row)] = max(best.get(tuple(row), 0.0), one.throughput)

    @cache
    def most(nodes: tuple[int, ...]) -> float:
        """Throughput of the best templates that these nodes can form together."""
        inside = [use for use in best if any(use) and all(u <= n for u, n in zip(use, nodes, strict=True))]
        return max(
            (best[use] + most(tuple(n - u for n, u in zip(nodes, use, strict=True))) for use in inside),
            default=0.0,
        )

    def split(nodes: tuple[int, ...]) -> float:
        parts = product(*(range(n + 1) for n in nodes))
        rests = ((part, tuple(n - p for n, p in zip(nodes, part, strict=True))) for part in parts)
        return max((most(a) + most(b) for a, b in rests if any(a) and any(b)), default=0.0)

    throughput = np.array([one.throughput for one in templates])
    alone = np.array(
        [
            one.throughput > split(tuple(row)) + 1e-12 and one.throughput >= best[tuple(row)]
            for row, one in zip(usage.tolist(), templates, strict=True)
        ],
        dtype=np.bool_,
    )
    return TemplateTable(node_types=kinds, usage=usage, throughput=throughput, irreducible=alone)


class World(Struct, frozen=True, kw_only=True):
    view: View
    library: MemoryLibrary


def model(
    name: str,
    requests_per_s: float,
    phases: tuple[Phase, ...] = ("prefill", "decode"),
    *,
    priority: float = 1.0,
    initialization_s: float = 0.0,
) -> ModelSpec:
    classes = (RequestClass(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS),)
    return ModelSpec(
        name=name,
        shape=SHAPE,
        slo=UNIFORM_SLO,
        demand=Demand(requests_per_s=requests_per_s, classes=classes, input_tokens_quantile=INPUT_TOKENS),
        phases=phases,
        engine="mock",
        priority=priority,
        initialization_s=initialization_s,
    )


def random_world(
    seed: int,
    options: PlanOptions,
    *,
    models: int = 2,
    sizes: Sequence[int] = (1, 2, 4),
    machine_sizes: Sequence[int] = (1, 2, 4),
    domains: int = 2,
    most: int = 3,
    running: int = 0,
    scarce: float = 1.0,
    mixed: bool = False,
    choose: bool = False,
    initialization_s: float = 0.0,
) -> World:
    """Two GPU models, templates of one or two nodes, `most` machines of an offer; demand such that a few
    machines serve it, times `scarce`. Running instances sit on held machines, packed at random. `choose`:
    each model has templates of all three phases."""
    draw = np.random.default_rng(seed)
    names = [f"m{i}" for i in range(models)]
    phases: tuple[Phase, ...] = ("mixed",) if mixed else ("prefill", "decode")
    if choose:
        phases = ("prefill", "decode", "mixed")
    kinds = [NodeType(gpu, size) for gpu in ("a", "b") for size in sizes]
    library = MemoryLibrary(
        template for name in names for phase in phases for template in _templates(draw, name, phase, kinds)
    )
    places = [Domain(cloud="c", region=f"r{i}") for i in range(domains)]
    offers = [
        Offer(
            machine_type=MachineType(name=f"{gpu}.{size}", gpu=gpu, gpus=size),
            domain=place,
            price_usd_h=float(round(size * draw.uniform(0.5, 1.5) * (1.0 if gpu == "a" else 1.7), 3)),
            obtainable=int(draw.integers(0, most + 1)),
        )
        for place in places
        for gpu in ("a", "b")
        for size in machine_sizes
    ]
    held, live = _running(draw, library, offers, running, slices=options.slices)
    specs = tuple(
        model(
            name,
            float(round(scarce * draw.uniform(0.5, 4.0), 2)),
            phases,
            initialization_s=initialization_s,
        )
        for name in names
    )
    view = View(models=specs, offers=tuple(offers), machines=held, running=live, options=options)
    return World(view=view, library=library)


def _templates(
    draw: np.random.Generator, name: str, phase: Phase, kinds: Sequence[NodeType]
) -> list[Template]:
    each = {"prefill": INPUT_TOKENS, "decode": OUTPUT_TOKENS, "mixed": 1.0}[phase]
    picked = []
    for i, kind in enumerate(kinds):
        rate = each * kind.count * draw.uniform(0.3, 0.9) * (1.0 if kind.gpu == "a" else 1.6)
        if draw.random() < 0.8:
            picked.append(pipeline(name, phase, [kind], float(rate)))
        for other in kinds[i:]:
            if draw.random() < 0.3:
                both = each * (kind.count + other.count) * draw.uniform(0.3, 1.1)
                picked.append(pipeline(name, phase, [kind, other], float(both)))
    return picked or [pipeline(name, phase, [kinds[0]], each)]


def _running(
    draw: np.random.Generator, library: MemoryLibrary, offers: Sequence[Offer], count: int, *, slices: bool
) -> tuple[tuple[Machine, ...], tuple[RunningInstance, ...]]:
    machines: list[Machine] = []
    free: dict[str, list[int]] = {}
    live = []
    keys = sorted(library.templates)
    for number in range(count):
        templates = library.templates[keys[int(draw.integers(len(keys)))]]
        template = templates[int(draw.integers(len(templates)))]
        place = offers[int(draw.integers(len(offers)))].domain
        nodes = []
        for stage in template.placement.stages:
            for node in stage.nodes:
                found = _room(draw, node.node_type, place, offers, machines, free, slices=slices)
                if found is not None:
                    nodes.append(found)
        if len(nodes) == len(template.placement.stages):
            live.append(RunningInstance(id=f"i{number}", template=template, domain=place, nodes=tuple(nodes)))
    return tuple(machines), tuple(live)


def _room(
    draw: np.random.Generator,
    kind: NodeType,
    place: Domain,
    offers: Sequence[Offer],
    machines: list[Machine],
    free: dict[str, list[int]],
    *,
    slices: bool,
) -> Node | None:
    """Devices for a node, on a machine that is held or one that is held from now on."""
    fit = [
        m
        for m in machines
        if slices and m.domain == place and m.machine_type.gpu == kind.gpu and len(free[m.id]) >= kind.count
    ]
    if fit and draw.random() < 0.7:
        chosen = fit[int(draw.integers(len(fit)))]
    else:
        sold = [
            o
            for o in offers
            if o.domain == place
            and o.machine_type.gpu == kind.gpu
            and (o.machine_type.gpus >= kind.count if slices else o.machine_type.gpus == kind.count)
        ]
        if not sold:
            return None
        offer = sold[int(draw.integers(len(sold)))]
        chosen = Machine(
            id=f"h{len(machines)}",
            machine_type=offer.machine_type,
            domain=place,
            price_usd_h=offer.price_usd_h,
        )
        machines.append(chosen)
        free[chosen.id] = list(range(chosen.machine_type.gpus))
    devices = tuple(free[chosen.id][: kind.count])
    free[chosen.id] = free[chosen.id][kind.count :]
    return Node(machine_id=chosen.id, node_type=kind, devices=devices)
