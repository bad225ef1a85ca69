"""What has to be solved for one (model, phase), and what the answer depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

import coral
from coral.core.generate.budgets import UNITS, budget_tables
from coral.core.generate.combinations import count_within
from coral.core.generate.hardware import Hardware
from coral.core.generate.manifest import FORMAT, Entry
from coral.core.generate.search import Search, Tables
from coral.core.profile.targets import targets
from coral.core.profile.throughput import RULES_VERSION, ThroughputTable, tables_of_targets
from coral.core.profile.weights import model_bytes
from coral.hookspecs.profiler import StepCost
from coral.types.model import ModelSpec, Phase
from coral.types.program import Floats

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


StageBudgets = Literal["uniform", "free"]
"""Each of S stages has ℓ/S of the SLO, or they share it freely."""


class GenerateOptions(Struct, frozen=True, kw_only=True):
    """N_max, ρ, the most stages of a template (None: as many as nodes), and how stages share the SLO."""

    max_nodes: int = 6
    memory_ratio: float = 12.0
    max_stages: int | None = None
    stage_budgets: StageBudgets = "uniform"
    budget_units: int = UNITS
    """K, where budgets are free."""

    @property
    def stages(self) -> int:
        return min(self.max_nodes, self.max_stages or self.max_nodes)


class Job(Struct, frozen=True, kw_only=True, eq=False):
    """One (model, phase): `task` is to be solved for `entry`."""

    entry: Entry
    rates: list[ThroughputTable]
    """For the SLO itself, then for shorter targets where they do better somewhere."""
    budgets: list[ThroughputTable] | None
    """The same by units of the target in the place of S; where stages share it freely."""
    task: Search
    combinations: int


def job_of(model: ModelSpec, phase: Phase, hardware: Hardware, options: GenerateOptions) -> Job:
    """Raises ProfileError and EngineError of the costs and capabilities."""
    aims = targets(model.slo, phase)
    rates = tables_of_targets(
        model,
        phase,
        hardware.node_types,
        hardware.gpus,
        hardware.costs,
        hardware.capabilities,
        hardware.hop,
        [float(S) for S in range(1, min(options.stages, model.shape.layers) + 1)],
        aims,
    )
    budgets = None
    if options.stage_budgets == "free" and options.stages > 1:
        budgets = budget_tables(model, phase, hardware, options.budget_units, aims)
    rates, budgets = _useful(rates, budgets)
    gpus, kinds = hardware.gpus, rates[0].node_types
    memory = np.array([float(kind.count * gpus[kind.gpu].memory_bytes) for kind in kinds])
    limit = options.memory_ratio * model_bytes(model.shape)
    if memory.size:  # a small model has many times its weights on the smallest node already
        limit = max(limit, float(memory.min()))
    tables = [
        Tables(rate=table.rate, free=None if budgets is None else budgets[a].rate)
        for a, table in enumerate(rates)
    ]
    task = Search(
        rate=tables[0].rate,
        memory_bytes=memory,
        memory_limit=limit,
        max_nodes=options.max_nodes,
        free=tables[0].free,
        shorter=tuple(tables[1:]),
    )
    inputs = _inputs(model, phase, hardware, options, rates, budgets) | {"memory_limit": limit}
    digest = hashlib.blake2b(msgspec.json.encode(inputs, order="sorted"), digest_size=12).hexdigest()
    entry = Entry(
        model=model.name,
        phase=phase,
        slo=model.slo,
        hash=digest,
        inputs=inputs,
        refused=rates[0].refused,
    )
    count = count_within(memory, limit, options.max_nodes)
    return Job(entry=entry, rates=rates, budgets=budgets, task=task, combinations=count)


def depends_on(model: ModelSpec) -> dict[str, Any]:
    """What templates depend on: not how much is asked for, what it is worth, nor how it is planned."""
    fields: dict[str, Any] = msgspec.to_builtins(model)
    for name in PLANNED:
        del fields[name]
    del fields["demand"]["requests_per_s"]
    return fields


def _useful(
    rates: list[ThroughputTable], budgets: list[ThroughputTable] | None
) -> tuple[list[ThroughputTable], list[ThroughputTable] | None]:
    """Left out are node types that no stage of this model can use, which would only sit idle, and targets
    that another does as well as everywhere."""
    together = [[one] for one in rates] if budgets is None else list(zip(rates, budgets, strict=True))
    kinds = np.flatnonzero(sum(table.rate.sum(axis=(0, 1, 2)) for table in together[0]))
    kept = undominated([np.concatenate([table.rate.ravel() for table in one]) for one in together])

    def of(tables: list[ThroughputTable]) -> list[ThroughputTable]:
        return [
            msgspec.structs.replace(
                tables[a],
                node_types=tuple(tables[a].node_types[c] for c in kinds),
                rate=np.ascontiguousarray(tables[a].rate[..., kinds]),
                tp=np.ascontiguousarray(tables[a].tp[..., kinds]),
            )
            for a in kept
        ]

    return of(rates), None if budgets is None else of(budgets)


def undominated(values: Sequence[Floats]) -> list[int]:
    """The first, and those that none that is kept is at least as large as everywhere."""
    kept: list[int] = []
    for a in range(len(values)):
        rest = [b for b in kept if (values[b] > values[a]).any() or b == 0]
        if not any((values[b] >= values[a]).all() for b in kept):
            kept = [*rest, a]
    return kept


def _digest(tables: Sequence[ThroughputTable]) -> str:
    content = hashlib.blake2b(digest_size=16)
    for table in tables:
        content.update(table.rate.tobytes() + table.tp.tobytes())
    return content.hexdigest()


def _inputs(
    model: ModelSpec,
    phase: Phase,
    hardware: Hardware,
    options: GenerateOptions,
    rates: Sequence[ThroughputTable],
    budgets: Sequence[ThroughputTable] | None,
) -> dict[str, Any]:
    """All that the answer depends on, for the hash and for people."""
    named: Sequence[str] = sorted({kind.gpu for kind in rates[0].node_types})
    gpus = hardware.gpus
    return {
        "coral": coral.__version__,
        "rules": RULES_VERSION,
        "format": FORMAT,
        "model": depends_on(model),
        "phase": phase,
        "options": msgspec.to_builtins(options),
        "hop": msgspec.to_builtins(hardware.hop),
        "gpus": {name: msgspec.to_builtins(gpus[name]) for name in named},
        "node_types": [str(kind) for kind in rates[0].node_types],
        "engine": {name: msgspec.to_builtins(hardware.capabilities(model, gpus[name])) for name in named},
        "costs": {name: _origin(hardware.costs(model, gpus[name])) for name in named},
        "rates": _digest(rates),
        "budgets": None if budgets is None else _digest(budgets),
    }


def _origin(cost: StepCost) -> dict[str, Any]:
    return {
        "profiler": cost.profiler,
        "engine": cost.engine,
        "engine_version": cost.engine_version,
        "provenance": cost.provenance,
        "error": cost.error,
    }
