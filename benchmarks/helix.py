"""Helix's 42-node cluster (arXiv 2406.01566, §6.6): the flow of its placement, and plans beside it.

    python -m benchmarks.helix --json

* The max flow of the placement that Helix published, with the rates its placement assumes, beside the
  decode throughput it reports, offline and online. Flow counts prompt and output tokens; 240 of 990 are
  decoded. A flow is a bound: batching, queues and stragglers come off it in Helix's simulator.
* The best flow found of placements cut at stages, by number of stages, over the same nodes and rates: by
  local search, and what the integer program adds within its time.
* What the `coral` planner rents to decode as much as Helix does online and offline, from the same profiles,
  within the latencies Helix has *online* (p50 2.09 s and 0.73 s), the only ones it reports; from machines
  like the cluster's, in any number and only those of the cluster. The Coral paper sets Helix's offline
  throughput beside its online latencies; here both are told. A plan's throughput is, like a flow, what is
  possible at full load: the like pair is the most `coral` makes of the cluster, and the placement's flow.

Prices, USD/h: A100-40GB 3.673 (GCP), V100 3.06, L4 0.8048, T4 0.526 a GPU (AWS): the paper's are not known.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from coral_solver_highs.options import HighsOptions
from coral_solver_highs.solver import build as build_highs

from benchmarks import helix_data, paper
from benchmarks.plan_check import faults
from coral.core.generate.build import GenerateOptions, build_library
from coral.core.generate.library import TemplateLibrary
from coral.core.plan.budget import Budget
from coral.core.plan.planners.coral import CoralPlanner
from coral.core.plan.planners.flow import max_flow, work_bound
from coral.core.plan.planners.options import CoralOptions
from coral.core.plan.planners.stage_search import searched_stages
from coral.core.plan.planners.stages import best_stages
from coral.core.profile.device import Hop
from coral.hookspecs.planner import View
from coral.types.hardware import Domain, Gpu, MachineType, NodeType, Offer
from coral.types.model import Demand, ModelSpec, RequestClass, Slo
from coral.types.step import Provenance, StepParts, StepWork

GPU_USD_H = {"A100": 3.673, "V100": 3.06, "L4": 0.8048, "T4": 0.526}
DECODED = helix_data.OUTPUT / (helix_data.PROMPT + helix_data.OUTPUT)
HERE = Domain(cloud="helix", region="cluster42")
LINK = Hop(latency_s=1e-3, bytes_per_s=125e6)
PAPER = {"helix_usd_h": 93.36, "coral_usd_h": 73.8, "helix_tokens_s": 637, "coral_tokens_s": 802.5}


class ProfiledCost:
    """A StepCost of Helix's profiles: a node type of several GPUs counts as one device."""

    profiler, engine, engine_version, error = "helix", "vllm", "", 0.15
    provenance: Provenance = "interpolated"
    elementwise = True
    kv_token_bytes = helix_data.KV_TOKEN_BYTES

    def __init__(self, kind: str) -> None:
        self._profile = helix_data.profiles()[kind]
        memory = helix_data.MEMORY_GIB[kind] * 2**30
        self.fixed_bytes = int(0.17 * memory + helix_data.GPUS[kind] * 1.27e9)

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        prompt = np.where(
            np.asarray(work.prefill_tokens) > 0, self._profile.prompt_ms(work.prefill_tokens), 0.0
        )
        decode = np.where(np.asarray(work.decode_rows) > 0, self._profile.decode_ms(work.decode_rows), 0.0)
        compute: Any = np.maximum(prompt + decode, 1e-3) * layers * 1e-3
        return StepParts(compute_s=compute)

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        return self.step_parts(work, layers, first=first, last=last, tp=tp).step_s

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        ends = int(first) + int(last and not (first and tied))
        return int(layers * helix_data.LAYER_BYTES + ends * 32_000 * 8192 * 2)


def price(kind: str) -> float:
    return GPU_USD_H[kind.partition("x")[0]] * helix_data.GPUS[kind]


def model(requests_per_s: float) -> ModelSpec:
    """Llama-2 70B with the latencies that Helix reports online."""
    found = helix_data.reference()
    size = RequestClass(input_tokens=helix_data.PROMPT, output_tokens=helix_data.OUTPUT)
    return ModelSpec(
        name="llama2-70b",
        shape=paper.shape("llama2-70b"),
        slo=Slo(
            prefill_s=found["online_prompt_latency_p50"]["helix"],
            decode_s=found["online_decode_latency_p50"]["helix"],
            percentile=0.5,
        ),
        demand=Demand(
            requests_per_s=requests_per_s, classes=(size,), input_tokens_quantile=helix_data.PROMPT
        ),
        phases=("prefill", "decode"),
        engine="vllm",
    )


def library(folder: Path, max_nodes: int) -> TemplateLibrary:
    kinds = tuple(NodeType(kind, 1) for kind in helix_data.GPUS)
    gpus = {
        kind: Gpu(
            name=kind,
            memory_bytes=helix_data.MEMORY_GIB[kind] * 2**30,
            memory_bytes_per_s=1.0,
            flops={"float16": 1.0},
        )
        for kind in helix_data.GPUS
    }
    return build_library(
        [model(1.0)],
        kinds,
        gpus,
        lambda _, gpu: ProfiledCost(gpu.name),
        paper.capabilities,
        GenerateOptions(max_nodes=max_nodes, memory_ratio=12.0),
        LINK,
        folder,
    )


def offers(numbers: Mapping[str, int]) -> tuple[Offer, ...]:
    return tuple(
        Offer(
            machine_type=MachineType(name=kind, gpu=kind, gpus=1),
            domain=HERE,
            price_usd_h=price(kind),
            obtainable=numbers[kind],
        )
        for kind in helix_data.GPUS
    )


def flows(stages: tuple[int, ...], time_limit_s: float) -> Iterator[dict[str, Any]]:
    """Flows of Helix's placement and of those cut at stages, beside what Helix reports."""
    rates, solver = helix_data.usual_rates(), build_highs(HighsOptions())
    found = helix_data.reference()
    spans = helix_data.spans(rates)
    flow = max_flow(spans, helix_data.LAYERS, solver, Budget(gap=0.0, time_limit_s=60.0))
    held = np.arange(1, helix_data.LAYERS + 1)
    limit = work_bound([float((rates[kind] * held).max()) for kind in helix_data.nodes()], helix_data.LAYERS)
    offline, online = (found[f"{name}_decode_throughput"]["helix"] for name in ("offline", "online"))
    yield {
        "what": "Helix's published placement",
        "flow_tokens_s": round(flow, 1),
        "flow_decode_tokens_s": round(flow * DECODED, 1),
        "bound_decode_tokens_s": round(limit * DECODED, 1),
        "reported_offline_decode_tokens_s": offline,
        "reported_online_decode_tokens_s": online,
        "offline_over_flow": round(offline / (flow * DECODED), 3),
        "online_over_flow": round(online / (flow * DECODED), 3),
    }
    available = {at: helix_data.counts()[kind] for at, kind in enumerate(helix_data.GPUS)}
    for count in stages:
        begun = time.perf_counter()
        cut = helix_data.table(rates, count)
        near = searched_stages(cut, count, available)
        searched_s = time.perf_counter() - begun
        above = near.flow * (1 + 1e-6) if near is not None else 0.0
        budget = Budget(gap=1e-3, time_limit_s=time_limit_s)
        more = best_stages(cut, count, available, solver, budget, above=above) if time_limit_s > 0 else None
        best = more or near
        yield {
            "what": "cut at stages",
            "stages": count,
            "flow_decode_tokens_s": round(best.flow * DECODED, 1) if best else None,
            "over_helix_flow": round(best.flow / flow, 3) if best else None,
            "over_bound": round(best.flow / limit, 3) if best else None,
            "layers": best.layers if best else None,
            "local_search_decode_tokens_s": round(near.flow * DECODED, 1) if near else None,
            "local_search_seconds": round(searched_s, 1),
            "seconds": round(time.perf_counter() - begun, 1),
        }


def plans(max_nodes: int, time_limit_s: float) -> Iterator[dict[str, Any]]:
    """What `coral` rents for Helix's online and offline throughput; and the most it makes of the cluster."""
    found, numbers = helix_data.reference(), helix_data.counts()
    cluster = sum(price(kind) * count for kind, count in numbers.items())
    with tempfile.TemporaryDirectory() as folder:
        templates = library(Path(folder), max_nodes)
        asked = {name: found[f"{name}_decode_throughput"]["helix"] for name in ("online", "offline")}
        for name, wanted in asked.items():
            for where, stock in (("any number", dict.fromkeys(numbers, 99)), ("the cluster's", numbers)):
                yield {
                    "what": f"coral, for Helix's {name} throughput",
                    "machines": where,
                    "wanted_decode_tokens_s": wanted,
                    "helix_cluster_usd_h": round(cluster, 2),
                    **_planned(templates, wanted, stock, time_limit_s),
                    "paper": PAPER,
                }
        yield {
            "what": "coral, the most of the cluster",
            "machines": "the cluster's",
            "helix_cluster_usd_h": round(cluster, 2),
            **_planned(templates, 10 * asked["offline"], numbers, time_limit_s),
        }


def _planned(
    templates: TemplateLibrary, decode_tokens_s: float, numbers: Mapping[str, int], time_limit_s: float
) -> dict[str, Any]:
    spec = model(decode_tokens_s / helix_data.OUTPUT)
    view: View = paper.view([spec], offers(numbers), paper.plan_options("paper", time_limit_s=time_limit_s))
    plan = CoralPlanner(CoralOptions()).plan(view, templates, build_highs(HighsOptions()))
    wrong = faults(plan, view)
    assert not wrong, wrong
    served = min(service.fraction for service in plan.services)
    return {
        "decode_tokens_s": round(served * decode_tokens_s, 1),
        "price_usd_h": round(plan.price_usd_h, 2),
        "decode_tokens_per_usd": round(served * decode_tokens_s * 3600 / plan.price_usd_h)
        if plan.price_usd_h
        else None,
        "gap": plan.certificate.gap if plan.certificate else None,
        "machines_rented": {one.machine_type: one.new for one in plan.machines},
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--stages", default="8,12,16,22", help="numbers of stages, commas between")
    parser.add_argument("--max-nodes", type=int, default=8, help="nodes of a template for coral's plans")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of one solve")
    arguments = parser.parse_args(argv)
    counts = tuple(int(count) for count in arguments.stages.split(",") if count)
    for source in (
        flows(counts, arguments.time_limit),
        plans(arguments.max_nodes, arguments.time_limit),
    ):
        for line in source:
            text = "  ".join(f"{key}={value}" for key, value in line.items())
            print(json.dumps(line) if arguments.json else text, flush=True)


if __name__ == "__main__":
    main()
