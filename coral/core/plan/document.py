"""A plan as plain data, the layout that `coral plan --json` prints. It is stable: tests and scripts read it.

::

    {format, planner, satisfied, price_usd_h, initialization_usd_h,
     certificate: {cost_usd_h, bound_usd_h, gap, source, work, seconds, columns, columns_full} or null,
     machines:  [{machine_type, domain, market, price_usd_h, kept, new}],
     instances: [{model, phase, template, domain, market, count, kept, throughput,
                  stages: [{first_layer, end_layer, layers, throughput,
                            nodes: [{node_type, count, tp, throughput}]}]}],
     services:  [{model, phase, unit, demand, served, capacity, fraction}],
     unkept:    [text],
     notes:     [text]}

What `coral plan` was asked beyond the plan stands beside these: `explanation` (--explain, see
`explain.explanation`), `mends` (where not all can be served, see `explain.mends`), `what_if` with `changes`,
`before` (a document) and `difference`, and `diff` (--what-if and --diff, see `explain.what_if` and
`explain.changes`). `--save` writes the document with `explanation` and `mends`.

`format` is raised where the layout changes in a way that a reader of the old one would trip over; a document
that was saved is read again by `read_document`.

`market` of instances: whose machines they must be on, null for any. `count` of a node: how many alike hold
the stage; `throughput` is that of one instance or one node, in `unit`: tokens/s, or requests/s where prefill
and decode are mixed. `unkept`: what else was asked and does not hold.
`domain` is cloud/region or cloud/region/zone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coral.errors import UsageError
from coral.types.model import Phase
from coral.types.placement import Stage
from coral.types.plan import Plan, PlannedInstances, PlannedMachines

FORMAT = 1


class SavedMachines(Struct, frozen=True, kw_only=True):
    machine_type: str
    domain: str
    market: str
    price_usd_h: float
    kept: int
    new: int


class SavedNodes(Struct, frozen=True, kw_only=True):
    node_type: str
    count: int


class SavedStage(Struct, frozen=True, kw_only=True):
    nodes: tuple[SavedNodes, ...]


class SavedInstances(Struct, frozen=True, kw_only=True):
    model: str
    phase: str
    template: str
    domain: str
    count: int
    stages: tuple[SavedStage, ...]


class SavedService(Struct, frozen=True, kw_only=True):
    model: str
    phase: str
    unit: str
    demand: float
    served: float
    capacity: float


class SavedPlan(Struct, frozen=True, kw_only=True):
    """What of a plan document is needed to compare two of them."""

    format: int
    satisfied: bool
    price_usd_h: float
    initialization_usd_h: float
    machines: tuple[SavedMachines, ...]
    instances: tuple[SavedInstances, ...]
    services: tuple[SavedService, ...]


def document(plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "planner": plan.planner,
        "satisfied": plan.satisfied,
        "price_usd_h": plan.price_usd_h,
        "initialization_usd_h": plan.initialization_usd_h,
        "certificate": msgspec.to_builtins(plan.certificate),
        "machines": [_machines(some) for some in plan.machines],
        "instances": [_instances(one) for one in plan.instances],
        "services": [
            {
                **msgspec.to_builtins(service),
                "unit": unit(service.phase),
                "fraction": service.fraction,
            }
            for service in plan.services
        ],
        "unkept": list(plan.unkept),
        "notes": list(plan.notes),
    }


def as_saved(plan: Plan) -> SavedPlan:
    return msgspec.convert(document(plan), SavedPlan)


def read_document(path: Path) -> SavedPlan:
    """A plan document of this format. Raises UsageError where the file is none, naming what is wrong."""
    mend = "give a file that `coral plan --save` or `coral plan --json` of this version has written"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the plan in {path}: {error.strerror}", mend=mend) from error
    try:
        given = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a plan document: {error}", mend=mend) from error
    found = given.get("format") if isinstance(given, dict) else None
    if found != FORMAT:
        names = f"format {found!r}" if found is not None else "no format"
        raise UsageError(
            f"{path} is no plan document that this version reads: it has {names}, expected is {FORMAT}",
            mend=mend,
        )
    try:
        return msgspec.convert(given, SavedPlan)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is a damaged plan document: {error}", mend=mend) from error


def unit(phase: Phase) -> str:
    return "requests/s" if phase == "mixed" else "tokens/s"


def _machines(some: PlannedMachines) -> dict[str, Any]:
    fields = ("machine_type", "market", "price_usd_h", "kept", "new")
    return {"domain": str(some.domain)} | {name: getattr(some, name) for name in fields}


def _instances(one: PlannedInstances) -> dict[str, Any]:
    template = one.template
    return {
        "model": template.model,
        "phase": template.phase,
        "template": template.id,
        "domain": str(one.domain),
        "market": one.market,
        "count": one.count,
        "kept": one.kept,
        "throughput": template.throughput,
        "stages": [_stage(stage) for stage in template.placement.stages],
    }


def _stage(stage: Stage) -> dict[str, Any]:
    alike = Counter((str(node.node_type), node.tp, node.throughput) for node in stage.nodes)
    return {
        "first_layer": stage.first_layer,
        "end_layer": stage.end_layer,
        "layers": stage.layers,
        "throughput": stage.throughput,
        "nodes": [
            {"node_type": kind, "count": count, "tp": tp, "throughput": throughput}
            for (kind, tp, throughput), count in sorted(alike.items())
        ],
    }
