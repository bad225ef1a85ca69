"""Layers that do not divide evenly over stages, on tables of real models and GPUs."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest

from coral.core.generate.layers import placement, roles_of
from coral.core.generate.search import Search, search
from coral.core.profile import catalogue
from coral.core.profile.calibration import CLASSES
from coral.core.profile.device import Hop
from coral.core.profile.roofline import RooflineStepCost
from coral.core.profile.throughput import ROLES, ThroughputTable, throughput_table
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import Demand, ModelShape, ModelSpec, MoeShape, Phase, RequestClass, Slo
from coral.types.program import Floats
from coral.types.step import StepWork

QWEN_235B = ModelShape(
    architecture="Qwen3MoeForCausalLM",
    layers=94,
    hidden=4096,
    heads=64,
    kv_heads=4,
    head_dim=128,
    intermediate=12288,
    vocab=151936,
    max_positions=40960,
    moe=MoeShape(experts=128, experts_per_token=8, intermediate=1536),
    weight_dtype="float8",
)
QWEN_32B = ModelShape(
    architecture="Qwen3ForCausalLM",
    layers=64,
    hidden=5120,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=25600,
    vocab=151936,
    max_positions=40960,
)


def cost(shape: ModelShape, gpu: Gpu) -> RooflineStepCost:
    return RooflineStepCost(
        shape=shape,
        gpu=gpu,
        engine="e",
        engine_version="1",
        efficiency=CLASSES[catalogue.gpu_class(gpu.name)],
    )


@cache
def table(
    shape: ModelShape, phase: Phase, kinds: tuple[NodeType, ...], stages: int, decode_s: float = 0.5
) -> ThroughputTable:
    spec = ModelSpec(
        name="m",
        shape=shape,
        slo=Slo(prefill_s=3.0, decode_s=decode_s),
        demand=Demand(
            requests_per_s=1,
            classes=(RequestClass(input_tokens=1024, output_tokens=128),),
            input_tokens_quantile=1024,
        ),
        phases=(phase,),
        engine="e",
    )

    def costs(model: ModelSpec, gpu: Gpu) -> StepCost:
        return cost(model.shape, gpu)

    def able(_: ModelSpec, gpu: Gpu) -> EngineCapabilities:
        return EngineCapabilities(
            version="1", block_size=16, dtypes=(), max_step_tokens=8192, max_step_requests=256, max_tp=4
        )

    hop = Hop(latency_s=5e-5, bytes_per_s=12e9)
    return throughput_table(spec, phase, kinds, catalogue.gpus(), costs, able, hop, stages)


def best_cut(rates: list[Floats], layers: int) -> float:
    """Over all cuts of `layers` layers, by dynamic programming: the least rate as great as can be."""
    best = np.full(layers + 1, -np.inf)
    best[0] = np.inf
    for rate in rates:
        later = [
            max((min(best[upto - held], rate[held - 1]) for held in range(1, upto + 1)), default=-np.inf)
            for upto in range(layers + 1)
        ]
        best = np.array(later)
    return float(best[layers])


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    "nodes",
    [(0,) * 8, (0, 0, 0, 0, 1, 1, 1, 1), (0, 0, 1, 1, 1, 1, 1, 1), (1, 0, 1, 0, 0, 1, 0, 1)],
)
def test_94_layers_on_8_stages_are_cut_as_brute_force_cuts_them(phase: Phase, nodes: tuple[int, ...]) -> None:
    """94 is no multiple of 8: no remainder is left to the last stage, every node holds its layers in
    memory, and the throughput is the best of all cuts."""
    kinds = (NodeType("L40S", 2), NodeType("A100-80GB", 1))
    rates = table(QWEN_235B, phase, kinds, 8)
    placed = placement(rates, nodes, range(8))
    assert sum(stage.layers for stage in placed.stages) == 94
    assert placed.stages[-1].end_layer == 94
    roles = roles_of(8)
    columns = [rates.rate[7, ROLES.index(role), :, node] for role, node in zip(roles, nodes, strict=True)]
    found = min(stage.nodes[0].throughput for stage in placed.stages)
    assert found > 0
    assert found == pytest.approx(best_cut(columns, 94))
    for stage, role, node in zip(placed.stages, roles, nodes, strict=True):
        gpu, tp = catalogue.gpu(kinds[node].gpu), stage.nodes[0].tp
        step = cost(QWEN_235B, gpu)
        held = step.weight_bytes(stage.layers, first=role == "first", last=role == "last", tied=False)
        assert held / tp + step.fixed_bytes < gpu.memory_bytes
    if len(set(nodes)) == 1:
        layers = [stage.layers for stage in placed.stages]
        assert max(layers) - min(layers) <= 2
        assert layers[-1] <= max(layers)


def test_a_whole_model_finds_the_same_cut_as_its_parts() -> None:
    """The search over all node sets and partitions contains the eight-stage pipeline of equal nodes."""
    kinds = (NodeType("A100-80GB", 1),)
    rates = table(QWEN_235B, "decode", kinds, 5)
    found = search(Search(rate=rates.rate, memory_bytes=np.ones(1), memory_limit=5.0, max_nodes=5))
    columns = [rates.rate[4, ROLES.index(role), :, 0] for role in roles_of(5)]
    assert found.throughput.max() >= best_cut(columns, 94) - 1e-9


def test_the_output_head_moves_layers_off_the_last_stage() -> None:
    """The head of Qwen3-32B costs about 0.45 of a layer on an L40S in a step of 1,024 prompt tokens; the
    stage that has it sets the cycle unless it holds fewer layers."""
    step = cost(QWEN_32B, catalogue.gpu("L40S"))
    work = StepWork(prefill_tokens=1024, prefill_context=1024**2 / 2, logit_rows=1)
    one, two = (step.step_s(work, n, first=False, last=False) for n in (1, 2))
    head = step.step_s(work, 1, first=False, last=True) - one
    assert head / (two - one) == pytest.approx(0.45, abs=0.06)

    kinds = (NodeType("H200", 1),)  # memory is ample: time alone cuts
    rates = table(QWEN_32B, "decode", kinds, 4, 0.025)
    placed = placement(rates, (0, 0, 0, 0), range(4))
    layers = [stage.layers for stage in placed.stages]
    assert layers[-1] < layers[1]
    assert sum(layers) == 64
    evenly = rates.rate[3, ROLES.index("last"), 15, 0]
    assert min(stage.nodes[0].throughput for stage in placed.stages) > evenly
    headless = table(msgspec.structs.replace(QWEN_32B, vocab=8), "decode", kinds, 4, 0.025)
    assert [stage.layers for stage in placement(headless, (0, 0, 0, 0), range(4)).stages] == [16] * 4
