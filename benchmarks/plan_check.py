"""Whether a plan holds, found out from the view alone: none of the planners' own code takes part."""

from __future__ import annotations

from collections import Counter

from coral.hookspecs.planner import View
from coral.types.hardware import Domain
from coral.types.plan import Plan

CLOSE = 1e-6


def faults(plan: Plan, view: View) -> list[str]:
    """What is wrong with it: machines that cannot be had, nodes without room, sums that are not so."""
    found = []
    kinds = {(o.machine_type.name, o.domain): o for o in view.offers}
    sizes: dict[tuple[Domain, str], Counter[int]] = {}
    for some in plan.machines:
        offer = kinds[some.machine_type, some.domain]
        if some.new > offer.obtainable:
            found.append(f"{some.new} {some.machine_type} in {some.domain}, there are {offer.obtainable}")
        place = sizes.setdefault((some.domain, offer.machine_type.gpu), Counter())
        place[offer.machine_type.gpus] += some.kept + some.new
    price = sum((m.kept + m.new) * kinds[m.machine_type, m.domain].price_usd_h for m in plan.machines)
    if abs(price - plan.price_usd_h) > CLOSE * max(price, 1.0):
        found.append(f"the machines cost {price}, the plan says {plan.price_usd_h}")
    nodes: dict[tuple[Domain, str], list[int]] = {}
    for one in plan.instances:
        for kind, count in one.template.nodes.items():
            nodes.setdefault((one.domain, kind.gpu), []).extend([kind.count] * count * one.count)
        placed = one.template.placement
        edges = [0, *(stage.end_layer for stage in placed.stages)]
        if [stage.first_layer for stage in placed.stages] != edges[:-1]:
            found.append(f"{one.template.id}: stages do not follow on each other")
        if placed.throughput < one.template.throughput * (1 - CLOSE):
            found.append(f"{one.template.id}: its slowest stage does {placed.throughput}")
    for key, wanted in nodes.items():
        left = _left(wanted, sizes.get(key, Counter()))
        if left:
            found.append(f"{left} nodes of {key[1]} have no room in {key[0]}")
    for service in plan.services:
        able = sum(
            one.count * one.template.throughput
            for one in plan.instances
            if (one.template.model, one.template.phase) == (service.model, service.phase)
        )
        if abs(able - service.capacity) > CLOSE * max(able, 1.0) or service.served > able * (1 + CLOSE):
            found.append(f"{service.model} {service.phase} can do {able}, the plan says {service.capacity}")
    return found


def _left(wanted: list[int], machines: Counter[int]) -> int:
    """Nodes that find no room, each put into the fullest machine that has it, largest first."""
    free = [size for size, count in machines.items() for _ in range(count)]
    left = 0
    for node in sorted(wanted, reverse=True):
        fit = [at for at, room in enumerate(free) if room >= node]
        if fit:
            free[min(fit, key=lambda at: free[at])] -= node
        else:
            left += 1
    return left
