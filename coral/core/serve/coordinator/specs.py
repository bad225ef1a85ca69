"""From a planned instance and the devices it has claimed to what its scheduler and workers are told.

A node of k devices with tensor parallel degree t becomes k / t workers of t devices each, which share
the node's weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from coral.core.operate.slots import Claim
from coral.errors import EngineError
from coral.types.hardware import Gpu, Node, NodeType
from coral.types.placement import StageNode, Template
from coral.types.stage import InstanceSpec, StageSpec

CUDA_THREADS = 4
"""CPU threads of a worker whose devices are GPUs."""

STEP_SHARE = 0.9
"""Of what the decode SLO leaves each stage; the rest is for hops and for steps that take longer than most."""


class ServingModel(Struct, frozen=True, kw_only=True):
    """What the config and the model's files say of one model, as its workers need it.

    `max_model_len` is the prompt and output together, in tokens.
    """

    name: str
    source: str
    layers: int
    max_model_len: int
    expected_output_tokens: int
    dtype: str
    engine: str
    engine_options: dict[str, Any] = {}
    engine_args: dict[str, Any] = {}
    python: str | None = None
    kv_lease_s: float = 60.0


class StepLimits(Struct, frozen=True, kw_only=True):
    """The most tokens and requests in one step of a worker: the engine's own, within the config's."""

    tokens: int
    requests: int


class WorkerSeat(Struct, frozen=True, kw_only=True):
    """A worker of an instance and where it runs. `limit_bytes` is enforced by the agent; 0: not."""

    spec: StageSpec
    machine_id: str
    limit_bytes: int


class InstanceLayout(Struct, frozen=True, kw_only=True):
    """Everything needed to start an instance. The scheduler runs on the machine of the first stage."""

    spec: InstanceSpec
    seats: tuple[WorkerSeat, ...]
    scheduler_machine: str


def layout(
    template: Template,
    claim: Claim,
    model: ServingModel,
    *,
    instance: str,
    generation: int,
    gpus: Mapping[str, Gpu],
    limits: Mapping[str, StepLimits],
) -> InstanceLayout:
    """`gpus` and `limits` by GPU name. Raises EngineError where the placement and the model disagree."""
    stages = template.placement.stages
    ends = [stage.end_layer for stage in stages]
    starts = [stage.first_layer for stage in stages]
    if starts != [0, *ends[:-1]] or ends[-1] != model.layers:
        raise EngineError(
            f"instance {instance}: the placement {template.placement.picture()} does not cover the "
            f"{model.layers} layers of {model.name}",
            mend="build the template library again: coral templates build",
        )
    seats: list[WorkerSeat] = []
    members: list[tuple[tuple[StageSpec, float], ...]] = []
    for s, (stage, nodes) in enumerate(zip(stages, claim.stages, strict=True)):
        group: list[tuple[StageSpec, float]] = []
        for planned, node in zip(stage.nodes, nodes, strict=True):
            gpu = gpus[node.node_type.gpu]
            for devices, weight in _workers(planned, node):
                spec = StageSpec(
                    instance=instance,
                    generation=generation,
                    node=f"{instance}/s{s}n{len(group)}",
                    stage=s,
                    stages=len(stages),
                    first_layer=stage.first_layer,
                    end_layer=stage.end_layer,
                    layers_total=model.layers,
                    source=model.source,
                    model=model.name,
                    engine=model.engine,
                    dtype=model.dtype,
                    node_type=NodeType(gpu.name, len(devices)),
                    devices=devices,
                    device_kind=gpu.kind,
                    threads=gpu.threads * len(devices) if gpu.kind == "cpu" else CUDA_THREADS,
                    memory_bytes=gpu.memory_bytes,
                    max_model_len=model.max_model_len,
                    max_step_tokens=limits[gpu.name].tokens,
                    max_step_requests=limits[gpu.name].requests,
                    step_target_s=STEP_SHARE * template.slo.decode_s / len(stages),
                    options=model.engine_options,
                    args=model.engine_args,
                )
                limit = gpu.memory_bytes * len(devices) if gpu.kind == "cpu" else 0
                seats.append(WorkerSeat(spec=spec, machine_id=node.machine_id, limit_bytes=limit))
                group.append((spec, weight))
        members.append(tuple(group))
    spec_of_instance = InstanceSpec(
        instance=instance,
        generation=generation,
        model=model.name,
        phase=template.phase,
        stages=tuple(members),
        expected_output_tokens=model.expected_output_tokens,
        max_model_len=model.max_model_len,
        kv_lease_s=model.kv_lease_s,
    )
    return InstanceLayout(
        spec=spec_of_instance, seats=tuple(seats), scheduler_machine=claim.stages[0][0].machine_id
    )


def _workers(planned: StageNode, node: Node) -> list[tuple[tuple[int, ...], float]]:
    """(devices, weight) of each worker of a node."""
    count, left_over = divmod(len(node.devices), planned.tp)
    if left_over or not count:
        raise EngineError(
            f"{len(node.devices)} devices cannot be split into workers of tensor parallel degree {planned.tp}"
        )
    return [
        (node.devices[i * planned.tp : (i + 1) * planned.tp], planned.throughput / count)
        for i in range(count)
    ]
