"""A plan without a solver: greedy over templates, for when the planner fails and nothing runs.

Not optimal, and it says so: no certificate. Models in the order of their priority; for each the
template that serves most per dollar among those that still fit, until the demand is served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from coral.core.operate.slots import Claim, Slots, claim
from coral.errors import LibraryError
from coral.hookspecs.planner import Library, TemplateTable, View
from coral.types.hardware import Domain, Machine, Offer
from coral.types.model import ModelSpec, Phase
from coral.types.placement import Template
from coral.types.plan import Plan, PlannedInstances, PlannedMachines, Service

TRIES = 200
"""Templates tried per model and phase, best first."""


class _Purse(Struct, kw_only=True):
    """Machines that may be used: held ones first, then those that offers promise."""

    machines: dict[str, Machine]
    free: dict[str, Slots]
    new: set[str]


def greedy_plan(view: View, library: Library) -> Plan:
    """Shapes and units as any plan. Raises LibraryError where the library lacks a model."""
    purse = _purse(view)
    used: set[str] = set()
    instances: Counter[tuple[str, Domain]] = Counter()
    templates: dict[str, Template] = {}
    services: list[Service] = []
    for model in sorted(view.models, key=lambda model: -model.priority):
        for phase in model.phases:
            need = _need(model, phase) / view.options.target_utilization
            capacity = 0.0
            while capacity < need:
                found = _best(library, model, phase, purse, used, need - capacity)
                if found is None:
                    break
                template, domain, taken = found
                templates[template.id] = template
                instances[template.id, domain] += 1
                capacity += template.throughput
                used.update(taken.machines)
                for node in taken.nodes:
                    slots = purse.free[node.machine_id]
                    left = tuple(device for device in slots.free if device not in node.devices)
                    purse.free[node.machine_id] = Slots(
                        machine_id=slots.machine_id, gpu=slots.gpu, domain=slots.domain, free=left
                    )
            services.append(
                Service(
                    model=model.name, phase=phase, demand=need, served=min(need, capacity), capacity=capacity
                )
            )
    return Plan(
        planner="greedy",
        machines=_machines(purse, used),
        instances=tuple(
            PlannedInstances(template=templates[id], domain=domain, count=count)
            for (id, domain), count in instances.items()
        ),
        services=tuple(services),
        price_usd_h=sum(purse.machines[id].price_usd_h for id in used),
        initialization_usd_h=0.0,
        certificate=None,
        notes=("greedy: the planner gave no plan; not proven optimal",),
    )


def _need(model: ModelSpec, phase: Phase) -> float:
    """Demand in the phase's unit of throughput."""
    demand = model.demand
    per_request = {"prefill": demand.input_tokens, "decode": demand.output_tokens, "mixed": 1.0}[phase]
    return demand.requests_per_s * per_request


def _purse(view: View) -> _Purse:
    machines = {machine.id: machine for machine in view.machines}
    new: set[str] = set()
    for offer in view.offers:
        for i in range(offer.obtainable):
            machine = _promised(offer, i)
            machines[machine.id] = machine
            new.add(machine.id)
    free = {
        id: Slots(
            machine_id=id,
            gpu=machine.machine_type.gpu,
            domain=machine.domain,
            free=tuple(range(machine.machine_type.gpus)),
        )
        for id, machine in machines.items()
    }
    return _Purse(machines=machines, free=free, new=new)


def _promised(offer: Offer, number: int) -> Machine:
    return Machine(
        id=f"{offer.key}#{number}",
        machine_type=offer.machine_type,
        domain=offer.domain,
        price_usd_h=offer.price_usd_h,
        market=offer.market,
    )


def _best(
    library: Library, model: ModelSpec, phase: Phase, purse: _Purse, used: set[str], need: float
) -> tuple[Template, Domain, Claim] | None:
    """The template of most useful throughput per dollar that can be placed now."""
    try:
        table = library.table(model.name, phase)
    except LibraryError:
        return None
    best: tuple[float, Template, Domain, Claim] | None = None
    for domain in dict.fromkeys(machine.domain for machine in purse.machines.values()):
        prices = _device_prices(purse, domain)
        for row in _ranked(table, prices, need)[:TRIES]:
            template = library.template(model.name, phase, int(row))
            slots = [s for s in purse.free.values() if s.domain == domain]
            slots.sort(key=lambda s: (s.machine_id not in used, s.machine_id in purse.new))
            [taken] = claim([(template.placement, domain)], slots)
            if taken is None:
                continue
            cost = sum(purse.machines[id].price_usd_h for id in taken.machines if id not in used)
            value = min(template.throughput, need) / (cost + 1e-6)
            if best is None or value > best[0]:
                best = (value, template, domain, taken)
            break  # ranked by price already: the first that fits is this domain's best
    return best[1:] if best else None


def _device_prices(purse: _Purse, domain: Domain) -> Mapping[str, float]:
    prices: dict[str, float] = {}
    for machine in purse.machines.values():
        if machine.domain == domain:
            price = machine.price_usd_h / machine.machine_type.gpus
            prices[machine.machine_type.gpu] = min(price, prices.get(machine.machine_type.gpu, price))
    return prices


def _ranked(table: TemplateTable, prices: Mapping[str, float], need: float) -> list[int]:
    """Rows by useful throughput per dollar of devices, best first; those with a GPU not here are out."""
    each = np.array([prices.get(t.gpu, np.inf) * t.count for t in table.node_types])
    with np.errstate(invalid="ignore"):
        cost = np.where(table.usage > 0, table.usage * each, 0.0).sum(axis=1)
    value = np.minimum(table.throughput, need) / (cost + 1e-6)
    order = np.argsort(-value, kind="stable")
    return [int(row) for row in order if np.isfinite(cost[row]) and table.throughput[row] > 0]


def _machines(purse: _Purse, used: set[str]) -> tuple[PlannedMachines, ...]:
    groups: dict[tuple[str, Domain, str], list[Machine]] = {}
    for id in sorted(used):
        machine = purse.machines[id]
        groups.setdefault((machine.machine_type.name, machine.domain, machine.market), []).append(machine)
    return tuple(
        PlannedMachines(
            machine_type=group[0].machine_type.name,
            domain=group[0].domain,
            market=group[0].market,
            price_usd_h=group[0].price_usd_h,
            kept=sum(machine.id not in purse.new for machine in group),
            new=sum(machine.id in purse.new for machine in group),
        )
        for group in groups.values()
    )
