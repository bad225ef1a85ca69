"""What stages gain that share the latency SLO freely, over ℓ/S each, in the extended setup."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from benchmarks import paper
from benchmarks.market import machine_types
from coral.core.generate.hardware import Hardware
from coral.core.generate.job import GenerateOptions, job_of
from coral.core.generate.node_types import worst_hop
from coral.core.generate.prices import template_prices
from coral.core.generate.search import Search, Sizes, solve
from coral.core.generate.templates import Found
from coral.hookspecs.planner import TemplateTable
from coral.types.hardware import NodeType
from coral.types.program import Floats


def budgets(profiler: str, max_nodes: int = 4, memory_ratio: float = 12.0) -> Iterator[dict[str, Any]]:
    """Gains are over all node combinations that ℓ/S each can serve too; CPU seconds of this process."""
    hardware = Hardware(
        node_types=paper.node_types("extended"),
        gpus=paper.gpus("extended"),
        costs=paper.step_costs(profiler),
        capabilities=paper.capabilities,
        hop=worst_hop(machine_types("extended")),
    )
    options = GenerateOptions(max_nodes=max_nodes, memory_ratio=memory_ratio, stage_budgets="free")
    for model in paper.models("extended"):
        for phase in model.phases:
            job = job_of(model, phase, hardware, options)
            shorter = tuple(msgspec.structs.replace(one, free=None) for one in job.task.shorter)
            alike = msgspec.structs.replace(job.task, free=None, shorter=shorter)
            uniform, of_uniform, uniform_s = _solved(alike)
            free, of_free, free_s = _solved(job.task)
            gain = free[uniform > 0] / uniform[uniform > 0]
            kinds = job.rates[0].node_types
            yield {
                "part": "budgets",
                "profiler": profiler,
                "max_nodes": max_nodes,
                "memory_ratio": memory_ratio,
                "problem": job.entry.key,
                "combinations": job.combinations,
                "feasible_uniform": int((uniform > 0).sum()),
                "feasible_free": int((free > 0).sum()),
                "gain_mean": _rounded(gain.mean() if len(gain) else None),
                "gain_p90": _rounded(np.quantile(gain, 0.9) if len(gain) else None),
                "gain_max": _rounded(gain.max(initial=0.0) if len(gain) else None),
                "improved_over_1_percent": _rounded((gain > 1.01).mean() if len(gain) else None),
                "best_tokens_s_per_usd_h_uniform": _rounded(_best(of_uniform, kinds)),
                "best_tokens_s_per_usd_h_free": _rounded(_best(of_free, kinds)),
                "uniform_cpu_s": round(uniform_s, 2),
                "free_cpu_s": round(free_s, 2),
            }


def _solved(task: Search) -> tuple[Floats, Found, float]:
    """Throughput of every combination, the templates, CPU seconds."""
    started = time.process_time()
    sizes, throughput = Sizes(task), [np.zeros(0)]
    while pieces := sizes.pieces():
        answers = [solve(piece) for piece in pieces]
        throughput += [answer.throughput for answer in answers]
        sizes.take(answers)
    return np.concatenate(throughput), sizes.found(), time.process_time() - started


def _best(found: Found, kinds: tuple[NodeType, ...]) -> float | None:
    table = TemplateTable(
        node_types=kinds, usage=found.usage, throughput=found.throughput, irreducible=found.irreducible
    )
    prices, _ = template_prices(table, machine_types("extended"))
    value = found.throughput[prices > 0] / prices[prices > 0]
    return float(value.max()) if len(value) else None


def _rounded(value: Any) -> float | None:
    return None if value is None else round(float(value), 4)
