"""The setups of the paper's evaluation (arXiv 2605.04357, §6): models, template library, view.

Core: Phi-4, GPT-OSS-20B, Qwen3-32B on L40S, L4, A10G × {1, 2, 4, 8} in two regions, 10 requests/s each.
Extended: also Llama-3-70B, GPT-OSS-120B, Qwen3-235B; also H100, A100-80GB × {1, 2, 4, 8}; a third region;
25 requests/s each. SLOs and layer counts are the paper's Table 3; shapes are the models' own `config.json`.

Lengths: means of the Azure LLM inference trace 2023 (conversation, code). BurstGPT, which the paper uses for
Qwen3-32B and Llama-3-70B, is not to be had here: Azure conversation stands in. `percentile` states the
prefill SLO for that quantile of the trace's prompts instead of the mean. Weights are bfloat16, the experts of
GPT-OSS mxfp4. Initialization takes 6 minutes and is charged over 60: K = 0.1.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from benchmarks.data import data_file
from coral.core.generate.build import GenerateOptions, Progress, build_library
from coral.core.generate.library import TemplateLibrary
from coral.core.generate.node_types import worst_hop
from coral.core.plugins import load_plugins
from coral.core.profile import catalogue
from coral.core.profile.fallback import WithFallback
from coral.core.profile.shape import shape_of
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.profiler import Profiler, StepCost
from coral.types.hardware import Gpu, Machine, NodeType, Offer
from coral.types.model import Demand, ModelShape, ModelSpec, Phase, RequestClass, Slo
from coral.types.plan import RunningInstance

Setup = Literal["core", "extended"]
Form = Literal["paper", "ours"]
Trace = Literal["conv", "code"]

ENGINE = "vllm"
GPUS: Mapping[Setup, tuple[str, ...]] = {
    "core": ("L40S", "L4", "A10G"),
    "extended": ("L40S", "L4", "A10G", "H100", "A100-80GB"),
}
COUNTS = (1, 2, 4, 8)
REQUESTS_PER_S: Mapping[Setup, float] = {"core": 10.0, "extended": 25.0}


class Row(Struct, frozen=True):
    """A line of the paper's Table 3; SLOs in seconds. `config`: file of the model's facts."""

    name: str
    config: str
    prefill_s: float
    decode_s: float
    trace: Trace


TABLE_3 = (
    Row("phi-4", "phi-4", 1.2, 0.060, "conv"),
    Row("gpt-oss-20b", "gpt-oss-20b", 0.9, 0.030, "code"),
    Row("qwen3-32b", "qwen3-32b", 1.6, 0.100, "conv"),
    Row("llama3-70b", "llama3-70b", 1.5, 0.080, "conv"),
    Row("gpt-oss-120b", "gpt-oss-120b", 1.0, 0.040, "conv"),
    Row("qwen3-235b", "qwen3-235b-a22b", 1.8, 0.120, "code"),
)
MODEL_TYPES = {
    "phi-4": "phi3",
    "gpt-oss-20b": "gpt_oss",
    "gpt-oss-120b": "gpt_oss",
    "qwen3-32b": "qwen3",
    "qwen3-235b-a22b": "qwen3_moe",
    "llama3-70b": "llama",
    "llama2-70b": "llama",
}


def models(
    setup: Setup,
    *,
    requests_per_s: float | None = None,
    phases: tuple[Phase, ...] = ("prefill", "decode"),
    percentile: float | None = None,
) -> tuple[ModelSpec, ...]:
    """Raises DataMissing where traces or model facts are not on this machine."""
    rate = REQUESTS_PER_S[setup] if requests_per_s is None else requests_per_s
    rows = TABLE_3[:3] if setup == "core" else TABLE_3
    return tuple(
        ModelSpec(
            name=row.name,
            shape=shape(row.config),
            slo=Slo(prefill_s=row.prefill_s, decode_s=row.decode_s),
            demand=demand(row.trace, rate, percentile),
            phases=phases,
            engine=ENGINE,
            initialization_s=360.0,
        )
        for row in rows
    )


def demand(trace: Trace, requests_per_s: float, percentile: float | None = None) -> Demand:
    prompts, outputs = lengths(trace)
    mean_in = sum(prompts) / len(prompts)
    at = mean_in if percentile is None else sorted(prompts)[int(percentile * len(prompts))]
    return Demand(
        requests_per_s=requests_per_s,
        classes=(RequestClass(input_tokens=mean_in, output_tokens=sum(outputs) / len(outputs)),),
        input_tokens_quantile=float(at),
    )


@cache
def lengths(trace: Trace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and output tokens of every request of the Azure trace."""
    path = data_file(f"azure_llm_2023/AzureLLMInferenceTrace_{trace}.csv")
    with path.open(newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    return tuple(prompt for prompt, _ in rows), tuple(output for _, output in rows)


@cache
def shape(config: str) -> ModelShape:
    """The shape of a model of `model_configs`, through the reader of Hugging Face configs."""
    facts = json.loads(data_file(f"model_configs/{config}.json").read_text())
    moe = facts["moe"] or {}
    return shape_of(
        {
            "model_type": MODEL_TYPES[config],
            "num_hidden_layers": facts["num_layers"],
            "hidden_size": facts["hidden_size"],
            "num_attention_heads": facts["num_heads"],
            "num_key_value_heads": facts["num_kv_heads"],
            "head_dim": facts["head_dim"],
            "intermediate_size": facts["intermediate_size"],
            "vocab_size": facts["vocab_size"],
            "max_position_embeddings": facts["max_position_embeddings"],
            "tie_word_embeddings": facts["tie_word_embeddings"],
            "sliding_window": facts["sliding_window"],
            "torch_dtype": "bfloat16",
            "quantization_config": {"quant_method": "mxfp4"}
            if "mxfp4" in str(facts["quantisation"])
            else None,
            "num_experts": moe.get("num_experts"),
            "num_experts_per_tok": moe.get("experts_per_token"),
            "moe_intermediate_size": moe.get("moe_intermediate_size"),
        },
        config,
    )


def gpus(setup: Setup) -> dict[str, Gpu]:
    return {name: catalogue.gpu(name) for name in GPUS[setup]}


def node_types(setup: Setup) -> tuple[NodeType, ...]:
    return tuple(NodeType(gpu, count) for gpu in GPUS[setup] for count in COUNTS)


def capabilities(model: ModelSpec, gpu: Gpu) -> EngineCapabilities:
    """An engine like vLLM: 16-token blocks, 8,192 tokens and 512 requests a step, TP up to 8."""
    return EngineCapabilities(
        version="", block_size=16, dtypes=(), max_step_tokens=8192, max_step_requests=512, max_tp=8
    )


def step_costs(profiler: str) -> Callable[[ModelSpec, Gpu], StepCost]:
    """Of the named profiler, with the analytic one behind it for what it has not measured."""
    registry = load_plugins()

    def built(name: str) -> Profiler:
        one: Profiler = registry.build(
            "profiler", name, registry.options_model("profiler", name).model_validate({})
        )
        return one

    asked = built(profiler) if profiler == "analytic" else WithFallback(built(profiler), built("analytic"))
    found: dict[tuple[str, str], StepCost] = {}

    def cost(model: ModelSpec, gpu: Gpu) -> StepCost:
        key = (model.name, gpu.name)
        if key not in found:
            found[key] = asked.step_cost(model.shape, gpu, ENGINE, dtype="bfloat16", measure=None)
        return found[key]

    return cost


def cache_folder() -> Path:
    """Where libraries of benchmarks are kept between runs: `$CORAL_BENCHMARKS`, else the user's cache."""
    return Path(os.environ.get("CORAL_BENCHMARKS", "~/.cache/coral/benchmarks")).expanduser()


def library(
    setup: Setup,
    profiler: str = "analytic",
    folder: Path | None = None,
    *,
    specs: Sequence[ModelSpec] | None = None,
    kinds: Sequence[NodeType] | None = None,
    max_nodes: int = 6,
    memory_ratio: float = 12.0,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> TemplateLibrary:
    """Built in `folder` (default: kept between runs), or opened where it is there already."""
    from benchmarks.market import machine_types

    specs = models(setup) if specs is None else specs
    kept = folder or cache_folder() / f"{setup}-{profiler}-{max_nodes}-{memory_ratio:g}"
    return build_library(
        specs,
        node_types(setup) if kinds is None else kinds,
        gpus(setup),
        step_costs(profiler),
        capabilities,
        GenerateOptions(max_nodes=max_nodes, memory_ratio=memory_ratio),
        worst_hop(machine_types(setup)),
        kept,
        store=kept.parent / "store" if folder is None else None,
        progress=progress,
        executor=executor,
    )


def plan_options(form: Form, *, gap: float = 1e-4, time_limit_s: float | None = 60.0) -> PlanOptions:
    """The paper's switches, or ours: target utilization 0.8, slices, phases coupled per domain."""
    ours = form == "ours"
    return PlanOptions(
        target_utilization=0.8 if ours else 1.0,
        slices=ours,
        couple_phases=ours,
        gap=gap,
        time_limit_s=time_limit_s,
    )


def view(
    specs: Sequence[ModelSpec],
    offers: Sequence[Offer],
    options: PlanOptions,
    *,
    machines: Sequence[Machine] = (),
    running: Sequence[RunningInstance] = (),
) -> View:
    return View(
        models=tuple(specs),
        offers=tuple(offers),
        machines=tuple(machines),
        running=tuple(running),
        options=options,
    )
