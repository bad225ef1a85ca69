from __future__ import annotations

import pytest

from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.specs import InstanceLayout, ServingModel, StepLimits, layout
from coral.errors import EngineError
from coral.types.hardware import Gpu, Node, NodeType
from coral.types.model import Slo
from coral.types.placement import Placement, Stage, StageNode, Template

SMALL = Gpu(name="small", kind="cpu", memory_bytes=100, memory_bytes_per_s=0, flops={}, threads=2)
BIG = Gpu(name="big", memory_bytes=800, memory_bytes_per_s=0, flops={})
MODEL = ServingModel(
    name="m", source="/models/m", layers=10, max_model_len=64, expected_output_tokens=5, dtype="float32",
    engine="mock", engine_args={"a": 1},
)  # fmt: skip
LIMITS = {"small": StepLimits(tokens=32, requests=4), "big": StepLimits(tokens=512, requests=64)}


def template(end: int = 10) -> Template:
    small = StageNode(node_type=NodeType("small", 1), throughput=2.0)
    wide = StageNode(node_type=NodeType("big", 4), throughput=6.0, tp=2)
    placement = Placement(
        stages=(
            Stage(first_layer=0, end_layer=3, nodes=(small, small)),
            Stage(first_layer=3, end_layer=end, nodes=(wide,)),
        )
    )
    slo = Slo(prefill_s=1, decode_s=1)
    return Template(id="t", model="m", phase="mixed", slo=slo, placement=placement, throughput=4.0)


CLAIM = Claim(
    stages=(
        (Node(machine_id="a", node_type=NodeType("small", 1), devices=(1,)),
         Node(machine_id="b", node_type=NodeType("small", 1), devices=(0,))),
        (Node(machine_id="c", node_type=NodeType("big", 4), devices=(2, 3, 4, 5)),),
    )
)  # fmt: skip


def laid_out(end: int, *, generation: int) -> InstanceLayout:
    return layout(
        template(end),
        CLAIM,
        MODEL,
        instance="m-1",
        generation=generation,
        gpus={"small": SMALL, "big": BIG},
        limits=LIMITS,
    )


def build(end: int = 10) -> tuple[list[list[str]], list[list[float]]]:
    made = layout(
        template(end),
        CLAIM,
        MODEL,
        instance="m-1",
        generation=1,
        gpus={"small": SMALL, "big": BIG},
        limits=LIMITS,
    )
    return (
        [[spec.node for spec, _ in stage] for stage in made.spec.stages],
        [[weight for _, weight in stage] for stage in made.spec.stages],
    )


def test_a_node_becomes_devices_over_tp_workers_that_share_its_weight() -> None:
    nodes, weights = build()
    assert nodes == [["m-1/s0n0", "m-1/s0n1"], ["m-1/s1n0", "m-1/s1n1"]]
    assert weights == [[2.0, 2.0], [3.0, 3.0]]


def test_what_workers_are_told() -> None:
    made = layout(
        template(),
        CLAIM,
        MODEL,
        instance="m-1",
        generation=3,
        gpus={"small": SMALL, "big": BIG},
        limits=LIMITS,
    )
    first, _, wide, other = made.seats
    assert (first.machine_id, first.limit_bytes, first.spec.devices) == ("a", 100, (1,))
    assert (first.spec.threads, first.spec.device_kind, first.spec.memory_bytes) == (2, "cpu", 100)
    assert (first.spec.first_layer, first.spec.end_layer, first.spec.layers_total) == (0, 3, 10)
    assert (wide.spec.devices, other.spec.devices) == ((2, 3), (4, 5))
    assert wide.limit_bytes == 0, "only the memory of CPU devices is the agent's to enforce"
    assert (first.spec.max_step_tokens, wide.spec.max_step_tokens) == (32, 512)
    assert (first.spec.max_step_requests, wide.spec.max_step_requests) == (4, 64)
    assert first.spec.step_target_s == 0.9 * 1 / 2, "nine tenths of a stage's share of the decode SLO"
    assert made.scheduler_machine == "a"
    assert made.spec.expected_output_tokens == 5
    assert {seat.spec.generation for seat in made.seats} == {3}


def test_a_placement_for_other_layers_is_refused() -> None:
    with pytest.raises(EngineError, match="10 layers of m"):
        build(end=9)
