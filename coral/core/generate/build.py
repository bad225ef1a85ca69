"""Build a template library: one entry per (model, phase), rebuilt only where its inputs changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

import coral
from coral.core.generate.library import (
    FORMAT,
    Entry,
    TemplateLibrary,
    forget_old,
    open_library,
    stored_entry,
    write_entry,
    write_manifest,
)
from coral.core.generate.combinations import count_within
from coral.core.generate.search import Search, search
from coral.core.generate.templates import Found
from coral.core.profile.device import Hop
from coral.core.profile.throughput import RULES_VERSION, ThroughputTable, throughput_table
from coral.core.profile.weights import model_bytes
from coral.core.profile.workload import Workload
from coral.errors import LibraryError
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import ModelSpec, Phase

__all__ = ["GenerateOptions", "Hop", "Progress", "build_library"]

Progress = Callable[[float, float, str], None]
"""`progress(done, total, what)`: `done` of `total` node combinations are solved; `what` is being done."""

Costs = Callable[[ModelSpec, Gpu], StepCost]
Capabilities = Callable[[ModelSpec, Gpu], EngineCapabilities]


WORTH_SHARING = 20_000
"""Combinations below which starting other processes takes longer than solving here."""


class GenerateOptions(Struct, frozen=True, kw_only=True):
    """N_max, ρ and the most stages of a template (None: as many as nodes)."""

    max_nodes: int = 6
    memory_ratio: float = 12.0
    max_stages: int | None = None

    @property
    def stages(self) -> int:
        return min(self.max_nodes, self.max_stages or self.max_nodes)


class Job(Struct, frozen=True, kw_only=True, eq=False):
    """One (model, phase) that has to be solved."""

    entry: Entry
    rates: ThroughputTable
    task: Search
    combinations: int


def build_library(
    models: Sequence[ModelSpec],
    node_types: Sequence[NodeType],
    gpus: Mapping[str, Gpu],
    costs: Costs,
    capabilities: Capabilities,
    options: GenerateOptions,
    hop: Hop,
    folder: Path,
    *,
    store: Path | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> TemplateLibrary:
    """Build what is missing or stale, atomically, and open it.

    The files of a (model, phase) lie in `store` (default: `folder`, which has the manifest), named by
    the hash of all their inputs, and are written as soon as they are solved: a build that was broken off
    goes on where it was, and one of which nothing changed reads only. With an `executor`, large jobs run
    there and `progress` hears of each when it ends; without one it hears of every few thousand
    combinations. Raises LibraryError where a worker of the executor dies.
    """
    store = store or folder
    kept: dict[str, Entry] = {}
    jobs: list[Job] = []
    for model in models:
        for phase in model.phases:
            if progress is not None:
                progress(0.0, 0.0, f"throughput of {model.name} ({phase}) on each node type")
            rates = throughput_table(model, phase, node_types, gpus, costs, capabilities, hop, options.stages)
            job = _job(model, phase, rates, gpus, costs, capabilities, options, hop)
            earlier = stored_entry(store, job.entry.hash)
            if earlier is None:
                jobs.append(job)
            else:
                kept[earlier.key] = earlier
    for job, found in _solved(jobs, progress, executor):
        kept[job.entry.key] = write_entry(store, job.entry, job.rates, found)
    write_manifest(folder, store, kept)
    forget_old(store, kept.values())
    return open_library(folder)


def _job(
    model: ModelSpec,
    phase: Phase,
    rates: ThroughputTable,
    gpus: Mapping[str, Gpu],
    costs: Costs,
    capabilities: Capabilities,
    options: GenerateOptions,
    hop: Hop,
) -> Job:
    """Node types that no stage of this model can use are left out: they would only sit idle."""
    useful = np.flatnonzero(rates.rate.any(axis=(0, 1, 2)))
    rates = ThroughputTable(
        node_types=tuple(rates.node_types[c] for c in useful),
        rate=np.ascontiguousarray(rates.rate[..., useful]),
        tp=np.ascontiguousarray(rates.tp[..., useful]),
    )
    memory = np.array([float(kind.count * gpus[kind.gpu].memory_bytes) for kind in rates.node_types])
    limit = options.memory_ratio * model_bytes(model.shape)
    if memory.size:  # a small model has many times its weights on the smallest node already
        limit = max(limit, float(memory.min()))
    task = Search(
        rate=rates.rate,
        memory_bytes=memory,
        memory_limit=limit,
        max_nodes=options.max_nodes,
    )
    named = sorted({kind.gpu for kind in rates.node_types})
    inputs = {
        "coral": coral.__version__,
        "rules": RULES_VERSION,
        "format": FORMAT,
        "model": depends_on(model),
        "phase": phase,
        "options": msgspec.to_builtins(options),
        "memory_limit": task.memory_limit,
        "hop": msgspec.to_builtins(hop),
        "gpus": {name: msgspec.to_builtins(gpus[name]) for name in named},
        "node_types": [str(kind) for kind in rates.node_types],
        "engine": {name: msgspec.to_builtins(capabilities(model, gpus[name])) for name in named},
        "costs": {name: _origin(costs(model, gpus[name])) for name in named},
        "rates": hashlib.blake2b(rates.rate.tobytes() + rates.tp.tobytes(), digest_size=16).hexdigest(),
    }
    digest = hashlib.blake2b(msgspec.json.encode(inputs, order="sorted"), digest_size=12).hexdigest()
    count = count_within(memory, task.memory_limit, options.max_nodes)
    in_flight = Workload(model, block_size=1).in_flight(phase)  # the block size does not enter it
    entry = Entry(
        model=model.name, phase=phase, slo=model.slo, in_flight=in_flight, hash=digest, inputs=inputs
    )
    return Job(entry=entry, rates=rates, task=task, combinations=count)


PLANNED = (
    "phases",
    "priority",
    "initialization_s",
    "floor",
    "max_cost_usd_h",
    "max_gpus",
    "survive_zone",
    "survive_machine",
)
"""Fields of a model that only the plan looks at."""


def depends_on(model: ModelSpec) -> dict[str, Any]:
    """What templates depend on: not how much is asked for, what it is worth, nor how it is planned."""
    fields: dict[str, Any] = msgspec.to_builtins(model)
    for name in PLANNED:
        del fields[name]
    del fields["demand"]["requests_per_s"]
    return fields


def _origin(cost: StepCost) -> dict[str, Any]:
    return {
        "profiler": cost.profiler,
        "engine": cost.engine,
        "engine_version": cost.engine_version,
        "provenance": cost.provenance,
        "error": cost.error,
    }


def _solved(
    jobs: Sequence[Job], progress: Progress | None, executor: Executor | None
) -> Iterator[tuple[Job, Found]]:
    total = float(sum(job.combinations for job in jobs))
    done = 0.0

    def tell(more: float, what: str) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total, what)

    if executor is None or len(jobs) < 2 or total < WORTH_SHARING:
        for job in jobs:
            tell(0, job.entry.key)
            yield job, search(job.task, lambda more, key=job.entry.key: tell(more, key))  # type: ignore[misc]
        return
    running = {executor.submit(search, job.task): job for job in jobs}
    for future in as_completed(running):
        job = running[future]
        try:
            found = future.result()
        except BrokenExecutor as error:
            raise LibraryError(
                f"a worker process died while it solved the templates of {job.entry.key}",
                mend="if memory ran out: lower generate.max_nodes, generate.memory_ratio or executor.workers",
            ) from error
        tell(job.combinations, job.entry.key)
        yield job, found
