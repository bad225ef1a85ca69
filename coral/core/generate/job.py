"""What has to be solved for one (model, phase), and what the answer depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

import coral
from coral.core.generate.budgets import UNITS, budget_table
from coral.core.generate.combinations import count_within
from coral.core.generate.hardware import Hardware
from coral.core.generate.manifest import FORMAT, Entry
from coral.core.generate.search import Search
from coral.core.profile.throughput import RULES_VERSION, ThroughputTable, throughput_table
from coral.core.profile.weights import model_bytes
from coral.core.profile.workload import Workload
from coral.hookspecs.profiler import StepCost
from coral.types.model import ModelSpec, Phase

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
    rates: ThroughputTable
    budgets: ThroughputTable | None
    """By units of the SLO in the place of S; where stages share it freely."""
    task: Search
    combinations: int


def job_of(model: ModelSpec, phase: Phase, hardware: Hardware, options: GenerateOptions) -> Job:
    """Raises ProfileError and EngineError of the costs and capabilities."""
    rates = throughput_table(
        model,
        phase,
        hardware.node_types,
        hardware.gpus,
        hardware.costs,
        hardware.capabilities,
        hardware.hop,
        options.stages,
    )
    budgets = None
    if options.stage_budgets == "free" and options.stages > 1:
        budgets = budget_table(model, phase, hardware, options.budget_units)
    rates, budgets = _useful(rates, budgets)
    gpus = hardware.gpus
    memory = np.array([float(kind.count * gpus[kind.gpu].memory_bytes) for kind in rates.node_types])
    limit = options.memory_ratio * model_bytes(model.shape)
    if memory.size:  # a small model has many times its weights on the smallest node already
        limit = max(limit, float(memory.min()))
    task = Search(
        rate=rates.rate,
        memory_bytes=memory,
        memory_limit=limit,
        max_nodes=options.max_nodes,
        free=None if budgets is None else budgets.rate,
    )
    inputs = _inputs(model, phase, hardware, options, rates, budgets) | {"memory_limit": limit}
    digest = hashlib.blake2b(msgspec.json.encode(inputs, order="sorted"), digest_size=12).hexdigest()
    in_flight = Workload(model, block_size=1).in_flight(phase)  # the block size does not enter it
    entry = Entry(
        model=model.name,
        phase=phase,
        slo=model.slo,
        in_flight=in_flight,
        hash=digest,
        inputs=inputs,
        refused=rates.refused,
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
    rates: ThroughputTable, budgets: ThroughputTable | None
) -> tuple[ThroughputTable, ThroughputTable | None]:
    """Node types that no stage of this model can use are left out: they would only sit idle."""
    tables = [rates] if budgets is None else [rates, budgets]
    kept = np.flatnonzero(sum(table.rate.sum(axis=(0, 1, 2)) for table in tables))
    rates, *more = [
        ThroughputTable(
            node_types=tuple(table.node_types[c] for c in kept),
            rate=np.ascontiguousarray(table.rate[..., kept]),
            tp=np.ascontiguousarray(table.tp[..., kept]),
            refused=table.refused,
        )
        for table in tables
    ]
    return rates, more[0] if more else None


def _digest(table: ThroughputTable) -> str:
    return hashlib.blake2b(table.rate.tobytes() + table.tp.tobytes(), digest_size=16).hexdigest()


def _inputs(
    model: ModelSpec,
    phase: Phase,
    hardware: Hardware,
    options: GenerateOptions,
    rates: ThroughputTable,
    budgets: ThroughputTable | None,
) -> dict[str, Any]:
    """All that the answer depends on, for the hash and for people."""
    named: Sequence[str] = sorted({kind.gpu for kind in rates.node_types})
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
        "node_types": [str(kind) for kind in rates.node_types],
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
