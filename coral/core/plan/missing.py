"""What a plan leaves unserved, why, and what it would take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coral.core.plan.limits import limits_of
from coral.core.plan.problem import Problem
from coral.types.hardware import NodeType
from coral.types.plan import Plan, Service


def shortages(problem: Problem, served: Sequence[Service]) -> list[str]:
    """A line for each service with unmet demand."""
    lines = []
    for index, (need, service) in enumerate(zip(problem.needs, served, strict=True)):
        if not service.met:
            unit = "requests/s" if need.phase == "mixed" else "tokens/s"
            lines.append(
                f"{need.name} {need.phase}: {service.served:.6g} of {need.demand:.6g} {unit} can be served "
                f"({service.fraction:.0%}); {_why(problem, index)}"
            )
    return lines


def _why(problem: Problem, index: int) -> str:
    table = problem.tables[index]
    usable = np.flatnonzero(table.throughput > 0)
    if not usable.size:
        if not table.node_types:
            return "no node on offer can hold a layer of it and meet its SLO"
        kinds = ", ".join(map(str, table.node_types))
        limits = "within generate.max_nodes and generate.memory_ratio"
        return f"no template of these node types meets its SLO {limits}: {kinds}"
    columns = problem.columns
    if not ((columns.service == index) & (columns.upper >= 1)).any():
        gpus = table.usage @ np.array([kind.count for kind in table.node_types])
        least = int(usable[np.argmin(gpus[usable])])
        smallest = _nodes(table.node_types, table.usage[least])
        return (
            f"no domain has the machines for any of its {usable.size} templates; the least takes {smallest}"
        )
    return "the machines that can be had do not suffice"


def _nodes(kinds: Sequence[NodeType], usage: Iterable[int]) -> str:
    return " + ".join(f"{int(n)}× {kind}" for kind, n in zip(kinds, usage, strict=True) if n)


def beyond(problem: Problem, full: Plan) -> str | None:
    """Which machines a cheapest plan for the whole demand takes that cannot be had now, and what limits it
    leaves aside."""
    obtainable: dict[tuple[str, object, str], int] = {}
    for offer in problem.view.offers:
        key = (offer.machine_type.name, offer.domain, offer.market)
        obtainable[key] = obtainable.get(key, 0) + offer.obtainable
    lines = []
    for planned in full.machines:
        short = planned.new - obtainable.get((planned.machine_type, planned.domain, planned.market), 0)
        if short > 0:
            lines.append(f"{short} more {planned.machine_type} ({planned.market}) in {planned.domain}")
    limits = limits_of(problem.view)
    if not lines and not limits:
        return None
    said = [f"with {', '.join(lines)}"] if lines else []
    said += [f"without {', '.join(limits)}"] if limits else []
    return f"all of it could be served for {full.price_usd_h:.6g} USD/h " + ", ".join(said)
