"""Models: shape, service-level objective, demand."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Phase = Literal["prefill", "decode", "mixed"]
Role = Literal["first", "mid", "last", "only"]

DTYPE_BYTES: dict[str, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "mxfp4": 0.53125,
    "nvfp4": 0.5625,
    "int4": 0.51953125,
}
"""Bytes per weight; of 4 bits each are mxfp4 with an 8-bit scale per 32 weights, nvfp4 with one per 16, and
int4 (AWQ, GPTQ) with a 16-bit scale and a 4-bit zero per 128."""


class Slo(Struct, frozen=True, kw_only=True):
    """Prefill latency (time to first token without queueing) and decode latency (per token)."""

    prefill_s: float
    decode_s: float
    percentile: float = 0.95


class RequestClass(Struct, frozen=True, kw_only=True):
    """Requests of one size; `share` of the model's requests, all shares sum to 1."""

    input_tokens: float
    output_tokens: float
    share: float = 1.0


class Demand(Struct, frozen=True, kw_only=True):
    """Requests per second, by size class, and the prompt length the prefill SLO is stated for."""

    requests_per_s: float
    classes: tuple[RequestClass, ...]
    input_tokens_quantile: float
    """Prompt tokens at the SLO's percentile; equals the mean where lengths are constant."""

    @property
    def input_tokens(self) -> float:
        return sum(c.share * c.input_tokens for c in self.classes)

    @property
    def output_tokens(self) -> float:
        return sum(c.share * c.output_tokens for c in self.classes)


class MoeShape(Struct, frozen=True, kw_only=True):
    experts: int
    experts_per_token: int
    intermediate: int
    shared_intermediate: int = 0


class ModelShape(Struct, frozen=True, kw_only=True):
    """What a step's cost and memory depend on; read from a Hugging Face `config.json`."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    moe: MoeShape | None = None
    windows: tuple[int, ...] = ()
    """Per layer the attention window in tokens, 0 = full; empty = all full."""
    weight_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    activation_dtype: str = "bfloat16"

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0


class ModelSpec(Struct, frozen=True, kw_only=True):
    """A model as the planner sees it."""

    name: str
    shape: ModelShape
    slo: Slo
    demand: Demand
    phases: tuple[Phase, ...]
    """("prefill", "decode") where phases are served apart, ("mixed",) otherwise; all three where the plan
    chooses: apart, mixed, or some of the demand in either way."""
    engine: str
    priority: float = 1.0
    initialization_s: float = 300.0
    """Time from order to first token on a new machine; charged over the amortization span."""
    floor: float = 0.0
    """Least fraction of the demand that is served where not all can be."""
    max_cost_usd_h: float | None = None
    """Most that the model's share of the machines may cost: its GPUs at their mean price."""
    max_gpus: int | None = None
    """Most GPUs that the model's instances may take."""
    survive_zone: float = 0.0
    """Share of the demand that is still served when any one zone is lost."""
    survive_machine: float = 0.0
    """Share of the demand that is still served when any one machine is lost."""
