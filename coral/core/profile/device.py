"""One kind of device holding layers of one model: its memory and its step times, for 1..L layers."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs

from coral.core.profile.grid import WorkGrid, step_grid
from coral.core.profile.windows import layer_tokens
from coral.core.profile.workload import Workload
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu
from coral.types.model import DTYPE_BYTES, ModelSpec, Phase, Role, Slo
from coral.types.program import Floats


class Hop(Struct, frozen=True, kw_only=True):
    """What handing rows from one stage to the next costs: the worst inter-machine link."""

    latency_s: float
    bytes_per_s: float


class Device:
    def __init__(
        self, model: ModelSpec, gpu: Gpu, cost: StepCost, able: EngineCapabilities, hop: Hop
    ) -> None:
        self.model = model
        self.gpu = gpu
        self.cost = cost
        self.able = able
        self.hop = hop
        self.layers = model.shape.layers
        self.work = Workload(model, able.block_size)
        self._free: dict[tuple[Role, int], Floats] = {}
        self._in_flight: dict[tuple[Phase, Slo], Floats] = {}

    def free_bytes(self, role: Role, tp: int) -> Floats:
        """`[L]`: bytes that one device has for KV beside the weights of j layers; may be negative."""
        if (role, tp) not in self._free:
            self._free[role, tp] = self._free_bytes(role, tp)
        return self._free[role, tp]

    def _free_bytes(self, role: Role, tp: int) -> Floats:
        first, last = role in ("first", "only"), role in ("last", "only")
        tied = self.model.shape.tied_embeddings
        held = [
            self.cost.weight_bytes(j, first=first, last=last, tied=tied) for j in range(1, self.layers + 1)
        ]
        return self.gpu.memory_bytes - self.cost.fixed_bytes - np.array(held, float) / tp

    def memory_rate(self, phase: Phase, role: Role, tp: int, slo: Slo | None = None) -> Floats:
        """`[L]`: the throughput whose requests in flight fill the memory, where each is in the pipeline for
        as long as `slo` allows (the model's own where not given); 0 where not one request fits."""
        free = self.free_bytes(role, tp) * tp / max(self.cost.kv_token_bytes, 1)
        fits = free >= layer_tokens(self.model.shape, self.work.longest(phase))[1:]
        return np.where(fits, free / self._held(phase, slo or self.model.slo), 0.0)

    def _held(self, phase: Phase, slo: Slo) -> Floats:
        """`[L]`: layer-tokens of KV per unit of throughput."""
        if (phase, slo) not in self._in_flight:
            work = Workload(structs.replace(self.model, slo=slo), self.able.block_size)
            self._in_flight[phase, slo] = layer_tokens(self.model.shape, work.held(phase))[1:]
        return self._in_flight[phase, slo]

    def seconds(self, works: WorkGrid, role: Role, tp: int) -> Floats:
        return step_grid(self.cost, works, self.layers, role, tp)

    def hop_s(self, rows: Floats, stages: float) -> Floats:
        """Seconds to hand `rows` hidden rows on; none where there is one stage."""
        if stages == 1:
            return np.zeros_like(rows)
        size = self.model.shape.hidden * DTYPE_BYTES[self.model.shape.activation_dtype]
        return self.hop.latency_s + rows * size / self.hop.bytes_per_s
