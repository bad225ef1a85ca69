"""Why each instance and machine is there, as far as price lists tell it; nothing is solved here.

An instance pays its share of the planned machines: of the GPUs in use of a model and domain each bears the
same, with slices; a whole machine each, without. Its throughput counts as far as it is asked for: what a
template could do beyond the whole demand is worth nothing. The next best is the template, of those that
one could host, with the least price per unit at the cheapest machines of its domain. It may be cheaper than
the chosen one: machines are whole, supply ends, and what is left over of them can serve others.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.explain.wording import nodes_in_words, nodes_of
from coral.core.plan.problem import Problem
from coral.core.plan.supply import Supply, supply
from coral.hookspecs.planner import View
from coral.types.hardware import Domain, MachineType, NodeType
from coral.types.plan import Plan, PlannedInstances, PlannedMachines
from coral.types.program import Floats


class Price(Struct, frozen=True, kw_only=True):
    """Of one instance: `usd_h` its nodes, `per_unit` USD per million tokens or per 1,000 requests."""

    nodes: str
    domain: str
    throughput: float
    usd_h: float
    per_unit: float


class InstanceReason(Struct, frozen=True, kw_only=True):
    """`price` of each of the `count` instances; `next_best` None where nothing else can be hosted."""

    model: str
    phase: str
    unit: str
    count: int
    price: Price
    next_best: Price | None


class MachineReason(Struct, frozen=True, kw_only=True):
    """`gpus` of all of them, `gpus_used` where nodes sit; `serves`: "model phase" of those nodes. GPUs of one
    model in a domain are told apart by machine only where nodes are whole machines."""

    machine_type: str
    domain: str
    market: str
    count: int
    usd_h: float
    gpus: int
    gpus_used: int
    serves: tuple[str, ...]


def unit_price(usd_h: float, throughput: float, phase: str) -> float:
    """USD per million tokens; per 1,000 requests where the phases are mixed."""
    size = 1e3 if phase == "mixed" else 1e6
    return usd_h / (throughput * 3600.0) * size


def price_unit(phase: str) -> str:
    return "USD/1k requests" if phase == "mixed" else "USD/1M tokens"


def instance_reasons(plan: Plan, problem: Problem) -> tuple[InstanceReason, ...]:
    shares = _shares(plan, problem.view)
    best = _next_best(plan, problem)
    demand = {(need.name, need.phase): need.demand for need in problem.needs}
    found = []
    for one in plan.instances:
        template = one.template
        key = (template.model, template.phase)
        usd_h = sum(
            n * shares.get(_pool(problem.view, one.domain, kind), 0.0) * kind.count
            for kind, n in template.nodes.items()
        )
        useful = min(template.throughput, demand.get(key, template.throughput))
        found.append(
            InstanceReason(
                model=template.model,
                phase=template.phase,
                unit=price_unit(template.phase),
                count=one.count,
                price=Price(
                    nodes=nodes_of(template),
                    domain=str(one.domain),
                    throughput=template.throughput,
                    usd_h=usd_h,
                    per_unit=unit_price(usd_h, useful, template.phase),
                ),
                next_best=best.get(key),
            )
        )
    return tuple(found)


def machine_reasons(plan: Plan, view: View) -> tuple[MachineReason, ...]:
    types = _types(view)
    slices = view.options.slices
    used: dict[tuple[Domain, str, int], int] = {}
    serves: dict[tuple[Domain, str, int], list[str]] = {}
    for one in plan.instances:
        for kind, n in one.template.nodes.items():
            pool = _pool(view, one.domain, kind)
            used[pool] = used.get(pool, 0) + n * kind.count * one.count
            serves.setdefault(pool, []).append(f"{one.template.model} {one.template.phase}")
    found = []
    for planned in sorted(plan.machines, key=lambda one: (one.domain, -one.price_usd_h)):
        machine = types[planned.machine_type, planned.domain]
        pool = (planned.domain, machine.gpu, 0 if slices else machine.gpus)
        count = planned.kept + planned.new
        taken = min(used.get(pool, 0), count * machine.gpus)
        used[pool] = used.get(pool, 0) - taken
        found.append(
            MachineReason(
                machine_type=planned.machine_type,
                domain=str(planned.domain),
                market=planned.market,
                count=count,
                usd_h=count * planned.price_usd_h,
                gpus=count * machine.gpus,
                gpus_used=taken,
                serves=tuple(dict.fromkeys(serves.get(pool, []))),
            )
        )
    return tuple(found)


def _pool(view: View, domain: Domain, kind: NodeType) -> tuple[Domain, str, int]:
    """Machines that a node may sit on, as far as a plan tells: of its GPU, and of its size where whole."""
    return (domain, kind.gpu, 0 if view.options.slices else kind.count)


def _types(view: View) -> dict[tuple[str, Domain], MachineType]:
    every = [(one.machine_type, one.domain) for one in view.offers]
    every += [(one.machine_type, one.domain) for one in view.machines]
    return {(kind.name, domain): kind for kind, domain in every}


def _shares(plan: Plan, view: View) -> dict[tuple[Domain, str, int], float]:
    """USD/h of one GPU in use, by pool."""
    types, slices = _types(view), view.options.slices
    paid: dict[tuple[Domain, str, int], float] = {}
    for one in plan.machines:
        machine = types[one.machine_type, one.domain]
        pool = (one.domain, machine.gpu, 0 if slices else machine.gpus)
        paid[pool] = paid.get(pool, 0.0) + _spent(one)
    used: dict[tuple[Domain, str, int], int] = {}
    for instances in plan.instances:
        for kind, n in instances.template.nodes.items():
            pool = _pool(view, instances.domain, kind)
            used[pool] = used.get(pool, 0) + n * kind.count * instances.count
    return {pool: paid.get(pool, 0.0) / gpus for pool, gpus in used.items()}


def _spent(one: PlannedMachines) -> float:
    return (one.kept + one.new) * one.price_usd_h


def _next_best(plan: Plan, problem: Problem) -> dict[tuple[str, str], Price]:
    columns = problem.columns
    have = supply(problem.view)
    prices = np.array([_list_prices(problem, have, site.domain) for site in problem.sites]).reshape(
        len(problem.sites), len(problem.node_types)
    )
    found: dict[tuple[str, str], Price] = {}
    for index, need in enumerate(problem.needs):
        lines = np.flatnonzero((columns.service == index) & (columns.kept < 0) & (columns.upper >= 1))
        if need.demand <= 0 or not lines.size:
            continue
        chosen = [
            one
            for one in plan.instances
            if (one.template.model, one.template.phase) == (need.name, need.phase)
        ]
        for one in chosen:
            lines = lines[(columns.usage[lines] != _usage(problem, one)).any(axis=1)]
        usage = columns.usage[lines]
        each = np.where(usage > 0, prices[columns.domain[lines]], 0.0)
        usd_h = (usage * each).sum(axis=1)
        useful = np.minimum(columns.throughput[lines], need.demand)
        rank = usd_h / useful
        if not np.isfinite(rank).any():
            continue
        at = int(np.lexsort((lines, rank))[0])
        kinds = {kind: int(n) for kind, n in zip(problem.node_types, usage[at], strict=True) if n}
        found[need.name, need.phase] = Price(
            nodes=nodes_in_words(kinds),
            domain=str(problem.sites[int(columns.domain[lines[at]])].domain),
            throughput=float(columns.throughput[lines[at]]),
            usd_h=float(usd_h[at]),
            per_unit=unit_price(float(usd_h[at]), float(useful[at]), need.phase),
        )
    return found


def _usage(problem: Problem, one: PlannedInstances) -> Floats:
    return np.array([one.template.nodes.get(kind, 0) for kind in problem.node_types], dtype=np.float64)


def _list_prices(problem: Problem, have: Supply, domain: Domain) -> list[float]:
    """Of one node of each type: the cheapest machine it could sit on, by the GPU where nodes are slices."""
    slices = problem.view.options.slices
    found = []
    for kind in problem.node_types:
        fit = [
            lot.price_usd_h * (kind.count / lot.gpus)
            for lot in have.of(domain, kind.gpu)
            if (lot.gpus >= kind.count if slices else lot.gpus == kind.count)
        ]
        found.append(min(fit, default=np.inf))
    return found
