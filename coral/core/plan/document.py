"""A plan as plain data, the layout that `coral plan --json` prints. It is stable: tests and scripts read it.

::

    {planner, satisfied, price_usd_h, initialization_usd_h,
     certificate: {cost_usd_h, bound_usd_h, gap, source, work, seconds, columns, columns_full} or null,
     machines:  [{machine_type, domain, market, price_usd_h, kept, new}],
     instances: [{model, phase, template, domain, count, kept, throughput,
                  stages: [{first_layer, end_layer, layers, throughput,
                            nodes: [{node_type, count, tp, throughput}]}]}],
     services:  [{model, phase, unit, demand, served, capacity, fraction}],
     notes:     [text]}

`count` of a node: how many alike hold the stage; `throughput` is that of one instance or one node, in `unit`:
tokens/s, or requests/s where prefill and decode are mixed. `domain` is cloud/region or cloud/region/zone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from coral.types.model import Phase
from coral.types.placement import Stage
from coral.types.plan import Plan, PlannedInstances


def document(plan: Plan) -> dict[str, Any]:
    return {
        "planner": plan.planner,
        "satisfied": plan.satisfied,
        "price_usd_h": plan.price_usd_h,
        "initialization_usd_h": plan.initialization_usd_h,
        "certificate": msgspec.to_builtins(plan.certificate),
        "machines": [
            {**msgspec.to_builtins(machines), "domain": str(machines.domain)} for machines in plan.machines
        ],
        "instances": [_instances(one) for one in plan.instances],
        "services": [
            {
                **msgspec.to_builtins(service),
                "unit": unit(service.phase),
                "fraction": service.fraction,
            }
            for service in plan.services
        ],
        "notes": list(plan.notes),
    }


def unit(phase: Phase) -> str:
    return "requests/s" if phase == "mixed" else "tokens/s"


def _instances(one: PlannedInstances) -> dict[str, Any]:
    template = one.template
    return {
        "model": template.model,
        "phase": template.phase,
        "template": template.id,
        "domain": str(one.domain),
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
