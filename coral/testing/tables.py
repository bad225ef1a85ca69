"""A template library in memory, and views of small worlds whose best plan is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coral.errors import LibraryError
from coral.hookspecs.planner import PlanOptions, TemplateTable, View
from coral.types.hardware import Domain, Machine, MachineType, NodeType, Offer
from coral.types.model import Demand, ModelShape, ModelSpec, Phase, RequestClass, Slo
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import RunningInstance

LAYERS = 4
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=LAYERS,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=128,
    vocab=256,
    max_positions=512,
)
HOME = Domain(cloud="here", region="one")
AWAY = Domain(cloud="here", region="two")
UNIFORM_SLO = Slo(prefill_s=1.0, decode_s=0.1)


def spec(name: str, requests_per_s: float, *, initialization_s: float = 0.0) -> ModelSpec:
    """A model served `mixed`, whose templates count requests/s."""
    return ModelSpec(
        name=name,
        shape=SHAPE,
        slo=UNIFORM_SLO,
        demand=Demand(
            requests_per_s=requests_per_s,
            classes=(RequestClass(input_tokens=100, output_tokens=50),),
            input_tokens_quantile=100,
        ),
        phases=("mixed",),
        engine="mock",
        initialization_s=initialization_s,
    )


def machine_type(gpu: str) -> MachineType:
    """One machine of one GPU, named after it."""
    return MachineType(name=f"{gpu}.1", gpu=gpu, gpus=1)


def offer(gpu: str, price: float, obtainable: int = 100, domain: Domain = HOME) -> Offer:
    return Offer(machine_type=machine_type(gpu), domain=domain, price_usd_h=price, obtainable=obtainable)


def held(name: str, gpu: str, price: float, domain: Domain = HOME) -> Machine:
    return Machine(id=name, machine_type=machine_type(gpu), domain=domain, price_usd_h=price)


def template(model: str, gpu: str, throughput: float) -> Template:
    """All layers on one node."""
    node = StageNode(node_type=NodeType(gpu, 1), throughput=throughput)
    return Template(
        id=f"{model}-{gpu}",
        model=model,
        phase="mixed",
        slo=UNIFORM_SLO,
        placement=Placement(stages=(Stage(first_layer=0, end_layer=LAYERS, nodes=(node,)),)),
        throughput=throughput,
    )


class TableLibrary:
    """A `coral.hookspecs.planner.Library`: per model the requests/s of one node of each GPU."""

    def __init__(self, throughputs: Mapping[str, Mapping[str, float]]) -> None:
        self._templates = {
            model: [template(model, gpu, throughput) for gpu, throughput in by_gpu.items()]
            for model, by_gpu in throughputs.items()
        }

    def table(self, model: str, phase: Phase) -> TemplateTable:
        templates = self._known(model, phase)
        n = len(templates)
        return TemplateTable(
            node_types=tuple(next(iter(one.nodes)) for one in templates),
            usage=np.eye(n, dtype=np.int16),
            throughput=np.array([one.throughput for one in templates]),
            irreducible=np.ones(n, dtype=np.bool_),
        )

    def template(self, model: str, phase: Phase, row: int) -> Template:
        return self._known(model, phase)[row]

    def _known(self, model: str, phase: Phase) -> list[Template]:
        if phase != "mixed" or model not in self._templates:
            raise LibraryError(f"no templates of {model}, {phase}", mend="build them")
        return self._templates[model]


def view(
    models: Sequence[ModelSpec],
    offers: Sequence[Offer],
    machines: Sequence[Machine] = (),
    running: Sequence[RunningInstance] = (),
) -> View:
    """With the paper's switches, so that the figures can be checked by hand."""
    return View(
        models=tuple(models),
        offers=tuple(offers),
        machines=tuple(machines),
        running=tuple(running),
        options=PlanOptions(target_utilization=1.0, slices=False, couple_phases=False, time_limit_s=20.0),
    )
