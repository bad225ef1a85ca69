"""Independent references for the allocation, stated otherwise and solved by scipy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from coral_solver_highs.options import HighsOptions
from coral_solver_highs.solver import HighsSolver, build

from coral.hookspecs.planner import View
from coral.testing.worlds import World
from coral.types.hardware import Domain, NodeType
from tests.core.plan.plain import PER_REQUEST, Rows


@pytest.fixture(scope="session")
def highs() -> HighsSolver:
    return build(HighsOptions())


def least_cost(world: World) -> float | None:
    """The least cost with one bin per machine: z_{m,k} nodes of size k on machine m, b_m whether it is
    taken. None where the demand cannot be met. All templates, none left out."""
    view, library = world.view, world.library
    options = view.options
    rows = Rows()
    slowest = max((m.initialization_s for m in view.models), default=0.0) / options.amortize_s
    nodes: dict[tuple[Domain, str, int], dict[int, float]] = defaultdict(dict)
    rates: dict[tuple[str, str, Domain], dict[int, float]] = defaultdict(dict)
    pins: dict[str, dict[int, float]] = defaultdict(dict)
    domains = sorted({o.domain for o in view.offers} | {m.domain for m in view.machines})
    for (name, phase), templates in library.templates.items():
        share = next(m.initialization_s for m in view.models if m.name == name) / options.amortize_s
        for template in templates:
            for domain in domains:
                charge = sum(n * _charge(view, domain, k) for k, n in template.nodes.items()) * share
                column = rows.variable(charge)
                rates[name, phase, domain][column] = template.throughput
                for kind, count in template.nodes.items():
                    nodes[domain, kind.gpu, kind.count][column] = float(count)
    for one in view.running:
        column = rows.variable(0.0, 1.0)
        rates[one.template.model, one.template.phase, one.domain][column] = one.template.throughput
        for node in one.nodes:
            pins[node.machine_id][column] = pins[node.machine_id].get(column, 0.0) + len(node.devices)
    every = [(m.machine_type, m.domain, m.price_usd_h, m.id) for m in view.machines]
    for offer in view.offers:
        every += [(offer.machine_type, offer.domain, offer.price_usd_h, "")] * offer.obtainable
    holders: dict[tuple[Domain, str, int], dict[int, float]] = defaultdict(dict)
    for type_, domain, price, held in every:
        charged = 0.0 if held or not options.slices else slowest
        taken = rows.variable(price * (1 + charged), 1.0)
        inside: dict[int, float] = {taken: -float(type_.gpus)}
        for domain_of, gpu, size in list(nodes):
            fits = size <= type_.gpus if options.slices else size == type_.gpus
            if domain_of == domain and gpu == type_.gpu and fits:
                column = rows.variable()
                inside[column] = float(size)
                holders[domain_of, gpu, size][column] = -1.0
        inside |= pins.get(held, {})
        rows.row(inside, upper=0.0)
    for key, users in nodes.items():
        rows.row({**users, **holders.get(key, {})}, upper=0.0)
    _demand(rows, view, rates, domains)
    return rows.least()


def _charge(view: View, domain: Domain, kind: NodeType) -> float:
    """What initialization is charged on, for one node."""
    sold = {
        (o.machine_type, o.price_usd_h, False) for o in view.offers if o.domain == domain and o.obtainable
    }
    held = {(m.machine_type, m.price_usd_h, True) for m in view.machines if m.domain == domain}
    prices = [
        (type_, price)
        for type_, price, _ in sorted(sold | held, key=lambda one: (one[0].name, one[1], one[2]))
        if type_.gpu == kind.gpu
    ]
    if view.options.slices:
        each = [price / type_.gpus for type_, price in prices]
        return kind.count * sum(each) / len(each) if each else 0.0
    return min((price for type_, price in prices if type_.gpus == kind.count), default=0.0)


def _demand(
    rows: Rows,
    view: View,
    rates: dict[tuple[str, str, Domain], dict[int, float]],
    domains: list[Domain],
) -> None:
    for spec in view.models:
        needed = spec.demand.requests_per_s
        coupled = view.options.couple_phases and len(spec.phases) == 2
        served = {d: rows.variable(integral=False) for d in domains} if coupled else {}
        if coupled:
            rows.row(dict.fromkeys(served.values(), 1.0), lower=needed)
        for phase in spec.phases:
            each = PER_REQUEST[phase] / view.options.target_utilization
            if coupled:
                for domain, column in served.items():
                    rows.row({**rates.get((spec.name, phase, domain), {}), column: -each}, lower=0.0)
            else:
                terms: dict[int, float] = {}
                for domain in domains:
                    terms.update(rates.get((spec.name, phase, domain), {}))
                rows.row(terms, lower=needed * each)


@pytest.fixture(scope="session")
def reference() -> Callable[[World], float | None]:
    return least_cost
