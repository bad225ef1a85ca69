"""Build a template library: one entry per (model, phase), rebuilt only where its inputs changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from pathlib import Path

import msgspec

from coral.core.generate.hardware import Capabilities, Costs, Hardware
from coral.core.generate.job import GenerateOptions, Job, job_of
from coral.core.generate.library import TemplateLibrary, open_library
from coral.core.generate.manifest import Entry
from coral.core.generate.search import search
from coral.core.generate.sharing import shared
from coral.core.generate.store import forget_old, stored_entry, write_entry, write_manifest
from coral.core.generate.templates import Found
from coral.core.profile.device import Hop
from coral.errors import LibraryError
from coral.types.hardware import Gpu, NodeType
from coral.types.model import ModelSpec

__all__ = ["GenerateOptions", "Hop", "Progress", "build_library"]

Progress = Callable[[float, float, str], None]
"""`progress(done, total, what)`: `done` of `total` node combinations are solved; `what` is being done."""

WORTH_SHARING = 20_000
"""Combinations below which starting other processes takes longer than solving here."""


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
    goes on where it was, and one of which nothing changed reads only. Several may build at once. With an
    `executor`, large builds run there, in pieces; `progress` hears of every few thousand combinations.
    Raises LibraryError where a worker of the executor dies, ProfileError where a step cost is no time;
    nothing is written then.
    """
    store = store or folder
    hardware = Hardware(
        node_types=tuple(node_types), gpus=gpus, costs=costs, capabilities=capabilities, hop=hop
    )
    kept: dict[str, Entry] = {}
    jobs: list[Job] = []
    for model in models:
        for phase in model.phases:
            if progress is not None:
                progress(0.0, 0.0, f"throughput of {model.name} ({phase}) on each node type")
            job = job_of(model, phase, hardware, options)
            earlier = stored_entry(store, job.entry.hash)
            if earlier is None:
                jobs.append(job)
            else:
                kept[earlier.key] = msgspec.structs.replace(earlier, refused=job.entry.refused)
    for job, found in _solved(jobs, progress, executor):
        kept[job.entry.key] = write_entry(store, job.entry, job.rates, job.budgets, found)
    write_manifest(folder, store, kept)
    forget_old(store, kept.values())
    return open_library(folder)


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

    if executor is None or total < WORTH_SHARING:
        for job in jobs:
            tell(0, job.entry.key)
            yield job, search(job.task, lambda more, key=job.entry.key: tell(more, key))  # type: ignore[misc]
        return
    largest = sorted(jobs, key=lambda job: -job.combinations)
    try:
        for number, found in shared(
            [job.task for job in largest],
            executor,
            lambda number, more: tell(more, largest[number].entry.key),
        ):
            yield largest[number], found
    except BrokenExecutor as error:
        raise LibraryError(
            "a worker process died while it solved templates",
            mend="if memory ran out: lower generate.max_nodes, generate.memory_ratio or executor.workers",
        ) from error
