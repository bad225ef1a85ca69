"""How long exact templates take, how many there are, and how good the best is, beside the paper's figures.

    python -m benchmarks.templates --json [--only extended fig13 fig1a budgets] [--profiler aiconfigurator]

`extended`: all (model, phase) problems of the extended setup at (N_max, ρ), tables, roles, irreducibility
and Parquet included. `fig13`: GPT-OSS-120B prefill at growing (N_max, ρ). Both in fresh processes without
compiled caches; memory is that of the whole process tree. The paper's counts are the labels of its Fig.
13; its seconds (384 cores) were read from the text of that figure, in which labels stand out of order:
take them as likely, not as quoted. `fig1a`: what mixing buys the best Qwen3-235B prefill template.
`budgets`: what stages gain that share the latency SLO freely.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import paper
from benchmarks.budgets import budgets
from benchmarks.cold import run_cold
from benchmarks.market import machine_types
from benchmarks.mixing import mixing
from coral.core.generate.library import TemplateLibrary
from coral.core.generate.ranking import best_templates
from coral.types.model import ModelSpec

FIG_13_MODEL = "gpt-oss-120b"
FIG_13 = (
    (3, 6.0, 605, 2),
    (4, 8.0, 3_467, 8),
    (5, 10.0, 14_828, 83),
    (6, 12.0, 53_178, 637),
    (7, 14.0, 168_695, 3_358),
)
"""N_max, ρ, the paper's combinations, the paper's seconds on 384 cores as read from the figure's text."""
TARGETS: dict[str, dict[str, float]] = {
    "extended": {"target_wall_s": 240.0, "target_peak_gib": 4.0},
    "fig13": {"target_wall_s": 50.0},
}
GIB = 1 << 30
PARTS = ("extended", "fig13", "fig1a", "budgets")


def build(
    specs: Sequence[ModelSpec], profiler: str, max_nodes: int, memory_ratio: float, workers: int | None
) -> list[dict[str, Any]]:
    """Build a library from nothing; a record for each (model, phase)."""
    with tempfile.TemporaryDirectory() as folder, _executor(workers) as executor:
        library = paper.library(
            "extended",
            profiler,
            Path(folder),
            specs=specs,
            max_nodes=max_nodes,
            memory_ratio=memory_ratio,
            executor=executor,
        )
        return [_problem(library, model, phase) for model in specs for phase in model.phases]


def _problem(library: TemplateLibrary, model: ModelSpec, phase: Any) -> dict[str, Any]:
    entry = library.entry(model.name, phase)
    best = best_templates(library, model.name, phase, machine_types("extended"), 1)
    return {
        "problem": entry.key,
        "combinations": entry.combinations,
        "templates": entry.rows,
        "irreducible": entry.irreducible,
        "best_tokens_s_per_usd_h": round(best[0].per_usd or 0.0, 2) if best else None,
        "best": best[0].template.placement.picture() if best else None,
    }


def _executor(workers: int | None) -> Executor:
    from coral.core.generate.executors.options import ProcessesOptions
    from coral.core.generate.executors.processes import build as processes

    return processes(ProcessesOptions(workers=workers))


def extended(profiler: str, max_nodes: int = 6, memory_ratio: float = 12.0) -> Iterator[dict[str, Any]]:
    cold = run_cold("benchmarks.templates", "--build", "all", profiler, str(max_nodes), str(memory_ratio))
    setting = {"profiler": profiler, "max_nodes": max_nodes, "memory_ratio": memory_ratio}
    for record in cold.result:
        yield {"part": "extended", **setting, **record}
    yield {
        "part": "extended",
        **setting,
        "problem": "all",
        "combinations": sum(record["combinations"] for record in cold.result),
        "wall_s": cold.wall_s,
        "cpu_s": cold.cpu_s,
        "peak_gib": round(cold.peak_rss_bytes / GIB, 2),
        **(TARGETS["extended"] if (max_nodes, memory_ratio) == (6, 12.0) else {}),
    }


def fig13(
    profiler: str, settings: Sequence[tuple[int, float, int, int]] = FIG_13
) -> Iterator[dict[str, Any]]:
    for max_nodes, memory_ratio, count, seconds in settings:
        asked = (FIG_13_MODEL, profiler, str(max_nodes), str(memory_ratio))
        cold = run_cold("benchmarks.templates", "--build", *asked)
        yield {
            "part": "fig13",
            "profiler": profiler,
            "max_nodes": max_nodes,
            "memory_ratio": memory_ratio,
            **cold.result[0],
            "wall_s": cold.wall_s,
            "cpu_s": cold.cpu_s,
            "peak_gib": round(cold.peak_rss_bytes / GIB, 2),
            "paper_combinations": count,
            "paper_seconds_384_cores": seconds,
            **(TARGETS["fig13"] if max_nodes == 7 else {}),
        }


def _build_and_print(which: str, profiler: str, max_nodes: int, memory_ratio: float) -> None:
    specs = paper.models("extended")
    if which != "all":
        specs = tuple(
            msgspec.structs.replace(spec, phases=("prefill",)) for spec in specs if spec.name == which
        )
    records = build(specs, profiler, max_nodes, memory_ratio, None)
    sys.stdout.write(msgspec.json.encode(records).decode())


def records_of(parts: Sequence[str], profilers: Sequence[str]) -> Iterator[dict[str, Any]]:
    for profiler in profilers:
        if "extended" in parts:
            yield from extended(profiler)
        if "fig13" in parts:
            yield from fig13(profiler)
        if "fig1a" in parts:
            yield from mixing(profiler)
        if "budgets" in parts:
            yield from budgets(profiler)


def run(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.templates", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--profiler", nargs="+", default=["analytic"])
    parser.add_argument("--build", nargs=4, metavar="X", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.build:
        which, profiler, max_nodes, memory_ratio = options.build
        _build_and_print(which, profiler, int(max_nodes), float(memory_ratio))
        return
    for record in records_of(options.only, options.profiler):
        if options.json:
            print(msgspec.json.encode(record).decode(), flush=True)
        else:
            print("  ".join(f"{key} {value}" for key, value in record.items()), flush=True)


if __name__ == "__main__":
    run()
