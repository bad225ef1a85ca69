"""From an allocation to a Plan: costs and served demand computed again from the counts alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from coral.core.plan.allocation import Allocation
from coral.core.plan.limits import exceeded
from coral.core.plan.problem import Problem
from coral.core.plan.services import coupled
from coral.core.plan.shortfall import shortfalls
from coral.hookspecs.planner import Library
from coral.types.plan import Certificate, Plan, PlannedInstances, PlannedMachines, Service
from coral.types.program import Floats


class Bill(Struct, frozen=True, kw_only=True):
    """USD/h. `cost_usd_h`, the objective, is both."""

    price_usd_h: float
    initialization_usd_h: float

    @property
    def cost_usd_h(self) -> float:
        return self.price_usd_h + self.initialization_usd_h


def bill(problem: Problem, found: Allocation) -> Bill:
    price = initialization = 0.0
    for site, counts in zip(problem.sites, found.machines, strict=True):
        for lot, count in zip((*site.lots, *site.shaped), counts, strict=True):
            price += count * lot.price_usd_h
            initialization += count * problem.machine_charge(lot)
    initialization += float(found.counts @ problem.columns.charge)
    return Bill(price_usd_h=price, initialization_usd_h=initialization)


def services(problem: Problem, found: Allocation) -> tuple[Service, ...]:
    """What each (model, phase) needs, gets, and could do. Where phases are coupled what counts is
    what the prefill and decode of one domain can do together."""
    columns = problem.columns
    able = np.zeros((len(problem.needs), int(problem.places.max(initial=-1)) + 1))
    np.add.at(able, (columns.service, problem.places[columns.domain]), columns.throughput * found.counts)
    portions = _portions(problem, able)
    return tuple(
        Service(
            model=need.name,
            phase=need.phase,
            demand=need.demand * portion,
            served=min(need.demand * portion, _usable(problem, able, index)),
            capacity=float(able[index].sum()),
        )
        for index, (need, portion) in enumerate(zip(problem.needs, portions, strict=True))
    )


def _portions(problem: Problem, able: Floats) -> list[float]:
    """The part of its model's demand that goes to each service: all of it, or where the plan chooses how a
    model is served, in proportion to what either way can do (all to the mixed way where neither can)."""
    portions = [1.0] * len(problem.needs)
    for model in range(len(problem.view.models)):
        mine = [i for i, need in enumerate(problem.needs) if need.model == model and need.demand > 0]
        mixed = [i for i in mine if problem.needs[i].phase == "mixed"]
        apart = [i for i in mine if i not in mixed]
        if not mixed or not apart:
            continue
        ways = [
            min(_usable(problem, able, i) / problem.needs[i].demand for i in way) for way in (mixed, apart)
        ]
        share = ways[0] / sum(ways) if sum(ways) > 0 else 1.0
        for i in mine:
            portions[i] = share if i in mixed else 1.0 - share
    return portions


def _usable(problem: Problem, able: Floats, index: int) -> float:
    need = problem.needs[index]
    alone = need.phase == "mixed" or not coupled(problem.view.models[need.model], problem.view)
    if need.demand <= 0 or alone:
        return float(able[index].sum())
    rates = [
        able[i] / other.per_request
        for i, other in enumerate(problem.needs)
        if other.model == need.model and other.phase != "mixed" and other.demand > 0
    ]
    return float(np.min(rates, axis=0).sum()) * need.per_request


def plan_of(
    problem: Problem,
    library: Library,
    found: Allocation,
    *,
    planner: str,
    certificate: Certificate | None,
    notes: Sequence[str] = (),
) -> Plan:
    """`notes` are followed by what the plan does not keep of the options."""
    cost = bill(problem, found)
    unkept = [*exceeded(problem, found.counts, found.machines), *shortfalls(problem, found)]
    return Plan(
        planner=planner,
        machines=_machines(problem, found),
        instances=_instances(problem, library, found),
        services=services(problem, found),
        price_usd_h=cost.price_usd_h,
        initialization_usd_h=cost.initialization_usd_h,
        certificate=certificate,
        notes=(*notes, *unkept),
        unkept=tuple(unkept),
        leaves=_leaves(problem, found),
    )


def _machines(problem: Problem, found: Allocation) -> tuple[PlannedMachines, ...]:
    totals: dict[tuple[object, ...], list[int]] = {}
    stays: dict[tuple[object, ...], list[str]] = {}
    planned = []
    lots = {}
    for site, counts in zip(problem.sites, found.machines, strict=True):
        names = (*[""] * len(site.lots), *site.machine_ids)
        for lot, count, name in zip((*site.lots, *site.shaped), counts, names, strict=True):
            if count > 0:
                lots[lot.kind] = lot
                stays.setdefault(lot.kind, []).extend([name] if name else [])
                totals.setdefault(lot.kind, [0, 0])[0 if lot.held else 1] += count
    for kind in sorted(lots):
        lot = lots[kind]
        kept, new = totals[kind]
        planned.append(
            PlannedMachines(
                machine_type=lot.machine_type,
                domain=lot.domain,
                market=lot.market,
                price_usd_h=lot.price_usd_h,
                kept=kept,
                new=new,
                stays=tuple(stays[kind]),
            )
        )
    return tuple(planned)


def _leaves(problem: Problem, found: Allocation) -> tuple[str, ...]:
    """Instances that are pinned to their machines and not kept; of others it does not matter which go."""
    columns = problem.columns
    gone = [int(columns.kept[line]) for line in np.flatnonzero((columns.kept >= 0) & (found.counts == 0))]
    return tuple(sorted(id for group in gone if problem.kept[group].pins for id in problem.kept[group].ids))


def _instances(problem: Problem, library: Library, found: Allocation) -> tuple[PlannedInstances, ...]:
    """By service and domain; kept and new instances of one template are one entry."""
    columns = problem.columns
    merged: dict[tuple[int, int, str], PlannedInstances] = {}
    for line in np.flatnonzero(found.counts > 0):
        service, index = int(columns.service[line]), int(columns.domain[line])
        count, group = int(found.counts[line]), int(columns.kept[line])
        need = problem.needs[service]
        if group >= 0:
            template = problem.kept[group].template
        else:
            template = library.template(need.name, need.phase, int(columns.row[line]))
        key = (service, index, template.id)
        before = merged.get(key)
        running = before is not None and before.kept > 0 and group < 0
        merged[key] = PlannedInstances(
            template=before.template if running and before is not None else template,
            domain=problem.sites[index].domain,
            market=problem.sites[index].market,
            count=count + (before.count if before else 0),
            kept=(count if group >= 0 else 0) + (before.kept if before else 0),
            stays=(
                *(before.stays if before else ()),
                *(problem.kept[group].ids if group >= 0 and problem.kept[group].pins else ()),
            ),
        )
    return tuple(merged[key] for key in sorted(merged))
