"""Public measurements of whole steps and of single layers, as work that a step cost can be asked for.

`e2e`: time per output token and time to first token of NVIDIA H100, H200, B200 (vLLM, SGLang, TensorRT-LLM;
bf16, fp8, fp4). `splitwise`: prompt and token times of A100 and H100 DGX (fp16). `helix`: milliseconds per
layer of A100-40GB, V100, L4, T4 (fp16). Each reader says what it leaves out and what it takes for granted.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Struct

from benchmarks import paper
from benchmarks.data import data_file
from coral.hookspecs.profiler import StepCost
from coral.types.model import ModelShape
from coral.types.step import StepWork

Source = Literal["e2e", "splitwise", "helix"]
TTFT_BESIDE_S = 17e-3
"""HTTP, tokenizing and the first token's way back: what vLLM's TTFT on H100 holds beyond its prefill and
the step it waits for; fitted to Llama-3.1-70B and gpt-oss there."""
EAGER_FLOOR_S = {"A100-80GB": 0.53e-3, "H100": 0.35e-3}
"""Seconds a layer below which Splitwise's engine (2023, without CUDA graphs) does not come on any TP
degree: its host launches kernels no faster. Fitted to single rows of Llama-2 70B at TP 8."""
HELIX_CONTEXT = 1000
"""Tokens of context of Helix's decode rows, which its files do not state: what the slope of Llama-1 30B (all
heads keep KV) over rows amounts to at the memory bandwidth that its single rows reach, on L4, T4 and A100."""


class Sample(Struct, frozen=True, kw_only=True):
    """A measured time. `steps`: (work, how often) whose times sum to it; `layer`: of one middle layer
    alone."""

    source: Source
    gpu: str
    phase: str
    model: str
    shape: ModelShape
    engine: str
    tp: int
    seconds: float
    steps: tuple[tuple[StepWork, float], ...]
    layer: bool = False
    beside_s: float = 0.0
    """What no step holds: the request's way in and out."""
    floor_s: float = 0.0
    """What the engine's host takes for a step whatever the GPU does."""
    fitted: bool = False
    """Whether figures of `calibration`, or those above, were fitted to this time."""

    def predicted_s(self, cost: StepCost) -> float:
        layers, tp = self.shape.layers, self.tp
        total = self.beside_s
        for work, times in self.steps:
            if self.layer:
                two = cost.step_s(work, 2, first=False, last=False, tp=tp)
                total += times * (two - cost.step_s(work, 1, first=False, last=False, tp=tp))
            else:
                total += times * cost.step_s(work, layers, first=True, last=True, tp=tp)
        return max(total, self.floor_s)


def samples() -> Iterator[Sample]:
    """Raises DataMissing where a file is not on this machine."""
    yield from e2e()
    yield from splitwise()
    yield from helix()


E2E_MODELS = {
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-70B": "llama3-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3-8b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
WEIGHTS = {"": "bfloat16", "fp8": "float8", "fp8_block": "float8", "nvfp4": "nvfp4"}
LOW_CONCURRENCY = 4


def e2e() -> Iterator[Sample]:
    """Left out: disaggregated rows, more than one machine (TP above 8), data-parallel attention (also where
    experts are spread wider than attention), and batches of 512, which are not the running batch. "fp4" of
    gpt-oss is its own mxfp4. KV of the quantised Llama-3.1-70B is float8 in TensorRT-LLM, as the checkpoint
    states (`kv_cache_quant_algo`). TPOT holds the prompts taken in while a request decodes: of `batch`
    requests in flight each meets the others' prompts once, so TPOT = decode step + (batch - 1) prompts / osl.
    TTFT of up to 4 requests in flight: the step that is running, the prompt, and TTFT_BESIDE_S."""
    with data_file("e2e_silicon_sample/silicon.csv").open() as file:
        for row in csv.DictReader(file):
            batch, tp = float(row["batch_size"] or 0), float(row["tp_size"] or 0)
            model = E2E_MODELS[row["model_path"]]
            shape = shape_of_model(model)
            spread = float(row["moe_tp_size"] or 1) * float(row["moe_ep_size"] or 1)
            apart = float(row["attention_dp_size"] or 1) > 1 or (shape.moe is not None and spread != tp)
            if row["mode"] != "agg" or tp > 8 or batch >= 512 or apart:
                continue
            weights = "mxfp4" if model == "gpt-oss-120b" else WEIGHTS[row["gemm_quant_mode"]]
            small = model == "llama3-70b" and weights != "bfloat16" and row["backend"] == "trtllm"
            prompt, output = float(row["isl"]), float(row["osl"])
            decode, taken = _decode(batch, prompt + output / 2), _prompts(1, prompt)
            gpu = row["system"].removesuffix("_sxm").upper()
            tpot = Sample(
                source="e2e",
                phase="tpot",
                gpu=gpu,
                model=model,
                shape=msgspec.structs.replace(
                    shape, weight_dtype=weights, kv_dtype="float8" if small else shape.kv_dtype
                ),
                engine=row["backend"],
                tp=int(tp),
                seconds=float(row["silicon_tpot_ms"]) / 1e3,
                steps=((decode, 1.0), (taken, (batch - 1) / output)),
                fitted=gpu == "H100" and batch <= 8,
            )
            yield tpot
            if batch <= LOW_CONCURRENCY:
                yield msgspec.structs.replace(
                    tpot,
                    phase="ttft",
                    seconds=float(row["silicon_ttft_ms"]) / 1e3,
                    steps=((decode, 1.0), (taken, 1.0)),
                    beside_s=TTFT_BESIDE_S,
                    fitted=gpu == "H100" and row["backend"] == "vllm",
                )


def splitwise() -> Iterator[Sample]:
    """Medians of repeats. Left out: the power-capped H100, and batches of 64 at TP 2, whose prompts are
    stated as faster than those of 16. fp16 weights; context of a token is the prompt and half of what is
    generated. Each is given twice: as it is, and (`_eager`) not below the time that the host takes to
    launch a step."""
    runs: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    with data_file("splitwise_perf_model/perf_model.csv").open() as file:
        for row in csv.DictReader(file):
            odd = row["tensor_parallel"] == "2" and row["batch_size"] == "64"
            if not row["hardware"].endswith("pcap") and not odd:
                key = tuple(row[n] for n in SPLITWISE_KEY)
                runs[key].append((float(row["prompt_time"]), float(row["token_time"])))
    for (model, hardware, tp, prompt, batch, generated), times in runs.items():
        shape = msgspec.structs.replace(shape_of_model(model), weight_dtype="float16")
        gpu = {"a100-80gb": "A100-80GB", "h100-80gb": "H100"}[hardware]
        works = {
            "prompt": _prompts(float(batch), float(prompt)),
            "token": _decode(float(batch), float(prompt) + float(generated) / 2),
        }
        for i, (phase, work) in enumerate(works.items()):
            one = Sample(
                source="splitwise",
                gpu=gpu,
                phase=phase,
                model=model,
                shape=shape,
                engine="vllm",
                tp=int(tp),
                seconds=statistics.median(run[i] for run in times) / 1e3,
                steps=((work, 1.0),),
            )
            yield one
            yield msgspec.structs.replace(
                one,
                phase=f"{phase}_eager",
                floor_s=EAGER_FLOOR_S[gpu] * shape.layers,
                fitted=tp == "8" and batch == "1" and model == "llama2-70b",
            )


SPLITWISE_KEY = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")


def helix() -> Iterator[Sample]:
    """Milliseconds of one layer; `l4x2` is TP 2 on one machine. Left out: batches of 0. Prompts are taken
    as of 1,000 tokens each, and decode rows as of HELIX_CONTEXT."""
    with data_file("helix_profiles/helix_bs2time.csv").open() as file:
        for row in csv.DictReader(file):
            tokens, seconds = float(row["batch_tokens"]), float(row["latency_ms_per_layer"]) / 1e3
            if tokens <= 0 or seconds <= 0:
                continue
            gpu, _, tp = row["gpu"].partition("x")
            prompts = max(1.0, tokens / 1000)
            decode = row["phase"] == "decode"
            work = _decode(tokens, HELIX_CONTEXT) if decode else _prompts(prompts, tokens / prompts)
            yield Sample(
                source="helix",
                gpu={"a100": "A100-40GB", "v100": "V100", "l4": "L4", "t4": "T4"}[gpu],
                phase=row["phase"],
                model=row["model"],
                shape=msgspec.structs.replace(shape_of_model(row["model"]), weight_dtype="float16"),
                engine="vllm",
                tp=int(tp or 1),
                seconds=seconds,
                steps=((work, 1.0),),
                layer=True,
                fitted=row["model"] == "llama2_70b" and gpu != "a100",
            )


def shape_of_model(name: str) -> ModelShape:
    """From `model_configs`, or written here where it has none."""
    if name not in _WRITTEN:
        return paper.shape(name.replace("llama2_", "llama2-"))
    layers, hidden, heads, kv_heads, intermediate, vocab, gated = _WRITTEN[name]
    return ModelShape(
        architecture=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        intermediate=intermediate,
        vocab=vocab,
        max_positions=8192,
        gated_mlp=gated,
    )


_WRITTEN = {
    "llama3-8b": (32, 4096, 32, 8, 14336, 128256, True),
    "llama1_30b": (60, 6656, 52, 52, 17920, 32000, True),
    "bloom-176b": (70, 14336, 112, 112, 57344, 250880, False),
}


def _prompts(count: float, tokens: float) -> StepWork:
    return StepWork(prefill_tokens=count * tokens, prefill_context=count * tokens**2 / 2, logit_rows=count)


def _decode(rows: float, context: float) -> StepWork:
    return StepWork(decode_rows=rows, decode_context=rows * context, logit_rows=rows)
