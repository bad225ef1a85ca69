"""A small library to test with: two devices of one model with affine step costs."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

from coral.core.generate.build import GenerateOptions, Hop, Progress, build_library
from coral.core.generate.hardware import Costs
from coral.core.generate.library import TemplateLibrary
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import Demand, ModelShape, ModelSpec, Phase, RequestClass, Slo
from coral.types.step import AffineStepCost

MIB = 1 << 20


def shape(layers: int = 12) -> ModelShape:
    return ModelShape(
        architecture="LlamaForCausalLM",
        layers=layers,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=128,
        vocab=1000,
        max_positions=2048,
        tied_embeddings=True,
        weight_dtype="float32",
        kv_dtype="float32",
        activation_dtype="float32",
    )


def model(
    name: str = "m",
    *,
    phases: tuple[Phase, ...] = ("mixed",),
    prefill_s: float = 2.0,
    decode_s: float = 0.2,
    requests_per_s: float = 1.0,
) -> ModelSpec:
    return ModelSpec(
        name=name,
        shape=shape(),
        slo=Slo(prefill_s=prefill_s, decode_s=decode_s),
        demand=Demand(
            requests_per_s=requests_per_s,
            classes=(RequestClass(input_tokens=60, output_tokens=40),),
            input_tokens_quantile=120,
        ),
        phases=phases,
        engine="test",
    )


def gpus(small_mib: int = 60) -> dict[str, Gpu]:
    return {
        "small": Gpu(name="small", kind="cpu", memory_bytes=small_mib * MIB, memory_bytes_per_s=0, flops={}),
        "large": Gpu(name="large", kind="cpu", memory_bytes=120 * MIB, memory_bytes_per_s=0, flops={}),
    }


HOP = Hop(latency_s=1e-3, bytes_per_s=1e9)
KINDS = (NodeType("small", 1), NodeType("large", 1))


def cost(_: ModelSpec, gpu: Gpu) -> StepCost:
    return AffineStepCost(
        gpu=gpu.name,
        engine="test",
        engine_version="1",
        provenance="measured",
        error=0.05,
        overhead_s=3e-4,
        layer_s=6e-4 if gpu.name == "small" else 4e-4,
        token_s=1e-4,
        attend_s=1e-7,
        head_s=2e-3,
        logit_row_s=1.5e-3,
        layer_bytes=6 * MIB,
        embed_bytes=10 * MIB,
        head_bytes=10 * MIB,
        kv_token_bytes=1024,
        fixed_bytes=2 * MIB,
    )


def capabilities(_: ModelSpec, __: Gpu) -> EngineCapabilities:
    return EngineCapabilities(
        version="1", block_size=16, dtypes=("float32",), max_step_tokens=256, max_step_requests=32
    )


def build(folder: Path, *models: ModelSpec, small_mib: int = 60, max_nodes: int = 3,
          memory_ratio: float = 1e6, progress: Progress | None = None,
          executor: Executor | None = None,
          options: GenerateOptions | None = None, store: Path | None = None,
          costs: Costs | None = None) -> TemplateLibrary:  # fmt: skip
    return build_library(
        models or (model(),),
        KINDS,
        gpus(small_mib),
        costs or cost,
        capabilities,
        options or GenerateOptions(max_nodes=max_nodes, memory_ratio=memory_ratio),
        HOP,
        folder,
        store=store,
        progress=progress,
        executor=executor,
    )
