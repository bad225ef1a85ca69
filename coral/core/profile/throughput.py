"""From step costs to T̂_j(g): the greatest throughput of a node that holds j layers of a stage.

Symbols: L layers, S stages, j layers held, ℓ_p and ℓ_d the SLOs, P the prompt length at the SLO's
percentile, in and out mean tokens, t(·) a step's seconds, t_k the tensor parallel degree. Rules (their
version is part of the library's hash):

* **Budget.** Of ℓ each of S stages has ℓ/S less its hop: NIC latency + rows · hidden · bytes / NIC rate
  (S = 1: none).
* **Memory** of one device: (weights + KV) / t_k + fixed bytes. KV in flight is what the scheduler
  reserves (`ReservationRule`, whole blocks; mean over a request's life, as an output longer than expected
  is given more from time to time), times the requests in flight by Little's law at the SLO:
  throughput × ℓ of the whole pipeline, which is never less than what is there. (Where memory binds, less
  than all of ℓ serves more: templates are made of tables for shorter latencies too, `targets`.) One
  request of P tokens must fit in any case. Of a model with sliding windows the worst run of j layers counts.
* **Prefill**, prompt tokens/s: a step of b prompts, one of length P and b - 1 of mean length, is within
  its budget; prompts beyond the engine's tokens per step take several steps. Best b · in / t over b.
* **Decode**, output tokens/s: a step of b rows at mean context is within its budget. Best b / t over b.
* **Mixed**, requests/s x: a steady step has b decode rows and p = b · in / out prompt tokens, so x =
  (b/out) / t(p, b). Chunks of q ≥ p prompt tokens must be bearable for a prompt of length P, whose i-th
  chunk attends to (i - 1/2) q tokens, the last to nearly P (following prompts fill its step): each of its
  ceil(P/q) steps, with b decode rows, is within ℓ_d/S, and their sum within ℓ_p/S. Best x over (q, b).
  Where the prompts to one row fill more than a step, b is a fraction, a mean over steps; the steps of a
  chunk are timed with a whole row.
* **A node of k GPUs** is the best of k/t_k data-parallel slices of degree t_k, where the heads and the
  engine allow t_k.
* Rates are capped by memory (a node may idle), so fewer layers never do worse: T̂ is made non-increasing
  in j.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from coral.core.profile.device import Device, Hop
from coral.core.profile.rates import RULES
from coral.core.profile.refusals import unusable
from coral.core.profile.workload import Workload
from coral.errors import UnknownDegree
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import ModelShape, ModelSpec, Phase, Role, Slo
from coral.types.program import Floats

ROLES: tuple[Role, ...] = ("first", "mid", "last", "only")
RULES_VERSION = 5


class ThroughputTable(Struct, frozen=True, kw_only=True, eq=False):
    """T̂ of one (model, phase): `rate[S-1, role, j-1, type]`, and the tensor parallel degree it is
    reached with.

    Roles are in the order of `ROLES`; `only` is filled for S = 1, the others for S ≥ 2.
    """

    node_types: tuple[NodeType, ...]
    rate: Floats
    tp: NDArray[np.int8]
    refused: dict[str, str] = {}
    """Node types that hold not a single layer, and why."""
    in_flight: float = 0.0
    """Requests in flight per unit of throughput, at most."""

    @property
    def layers(self) -> int:
        return int(self.rate.shape[2])

    @property
    def max_stages(self) -> int:
        return int(self.rate.shape[0])


def throughput_table(
    model: ModelSpec,
    phase: Phase,
    node_types: Sequence[NodeType],
    gpus: Mapping[str, Gpu],
    costs: Callable[[ModelSpec, Gpu], StepCost],
    capabilities: Callable[[ModelSpec, Gpu], EngineCapabilities],
    hop: Hop,
    max_stages: int,
) -> ThroughputTable:
    """T̂ for every node type and 1..`max_stages` stages. A GPU that the engine refuses has rate 0."""
    stages = max(1, min(max_stages, model.shape.layers))
    parts = [float(S) for S in range(1, stages + 1)]
    return table_of_parts(model, phase, node_types, gpus, costs, capabilities, hop, parts)


def table_of_parts(
    model: ModelSpec,
    phase: Phase,
    node_types: Sequence[NodeType],
    gpus: Mapping[str, Gpu],
    costs: Callable[[ModelSpec, Gpu], StepCost],
    capabilities: Callable[[ModelSpec, Gpu], EngineCapabilities],
    hop: Hop,
    parts: Sequence[float],
) -> ThroughputTable:
    """T̂ of stages that are given ℓ / part of each SLO, for the `parts` in the place of S.

    A part of 1 is the whole SLO for the only stage; the stages of any other hand rows on. A tensor parallel
    degree above 1 that the profiler knows nothing of is left out.
    """
    return tables_of_targets(model, phase, node_types, gpus, costs, capabilities, hop, parts, [model.slo])[0]


def tables_of_targets(
    model: ModelSpec,
    phase: Phase,
    node_types: Sequence[NodeType],
    gpus: Mapping[str, Gpu],
    costs: Callable[[ModelSpec, Gpu], StepCost],
    capabilities: Callable[[ModelSpec, Gpu], EngineCapabilities],
    hop: Hop,
    parts: Sequence[float],
    aims: Sequence[Slo],
) -> list[ThroughputTable]:
    """`table_of_parts` of pipelines that aim at each of `aims` in the place of the SLO (see `targets`), the
    first of which is the longest: `refused` is told of it alone."""
    layers = model.shape.layers
    rate = np.zeros((len(aims), len(parts), len(ROLES), layers, len(node_types)))
    tp = np.ones(rate.shape, np.int8)
    refused: dict[str, str] = {}
    for name in sorted({node_type.gpu for node_type in node_types}):
        able = capabilities(model, gpus[name])
        columns = [c for c, node_type in enumerate(node_types) if node_type.gpu == name]
        if able.refusal is not None:
            refused |= {str(node_types[c]): f"{name}: {able.refusal}" for c in columns}
            continue
        device = Device(model, gpus[name], costs(model, gpus[name]), able, hop)
        counts = {c: node_types[c].count for c in columns}
        for degree in degrees(model.shape, max(counts.values()), able.max_tp):
            if not any(count % degree == 0 for count in counts.values()):
                continue  # and is asked of no profiler, which may not have measured it
            try:
                slices = _slice(device, phase, degree, parts, aims)
            except UnknownDegree:
                continue
            for c, count in counts.items():
                if count % degree == 0:
                    better = slices * (count // degree) > rate[..., c]
                    rate[..., c] = np.where(better, slices * (count // degree), rate[..., c])
                    tp[..., c] = np.where(better, degree, tp[..., c])
        refused |= {
            str(node_types[c]): unusable(device, phase, count)
            for c, count in counts.items()
            if not rate[0, ..., c].any()
        }
    return [
        ThroughputTable(
            node_types=tuple(node_types),
            rate=rate[a],
            tp=tp[a],
            refused=refused,
            in_flight=Workload(structs.replace(model, slo=aim), block_size=1).in_flight(phase),
        )
        for a, aim in enumerate(aims)
    ]


def degrees(shape: ModelShape, count: int, max_tp: int) -> list[int]:
    """Tensor parallel degrees up to `count` that divide the attention heads and the KV heads evenly."""
    most = min(count, max_tp)
    return [t for t in range(1, most + 1) if shape.heads % t == 0 and shape.kv_heads % t == 0]


def _slice(device: Device, phase: Phase, tp: int, parts: Sequence[float], aims: Sequence[Slo]) -> Floats:
    """`[aim, part, role, j]` of one slice of `tp` GPUs."""
    rate = np.zeros((len(aims), len(parts), len(ROLES), device.layers))
    for r, role in enumerate(ROLES):
        of = [
            (a, i)
            for a in range(len(aims))
            for i, part in enumerate(parts)
            if (part == 1) == (role == "only")
        ]
        if of:
            fitted = RULES[phase](device, role, tp, [parts[i] for _, i in of], [aims[a] for a, _ in of])
            which, part_of = np.array(of).T
            rate[which, part_of, r] = np.maximum.accumulate(fitted[:, ::-1], axis=1)[:, ::-1]
    return rate
