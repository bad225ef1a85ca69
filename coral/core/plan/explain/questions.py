"""What is asked about a plan: one change of its view each, to be solved again.

============  ==============================================================================  ==========
offer         one more machine of an offer that is used up                                    cheaper
demand        one more request/s of a model                                                   dearer
template      the main template of a service forbidden: what is second best                   dearer
machine       one planned machine withheld: not to be had, or no longer held                  dearer
slo           a latency limit of a model loosened by a tenth (its templates are built anew)   either
============  ==============================================================================  ==========

A looser limit can cost more: its templates are counted with as many requests in flight as may be within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.explain.estimates import Estimates
from coral.core.plan.explain.figure import Direction
from coral.core.plan.explain.forbidden import without
from coral.core.plan.explain.what_if import model_path, offer_path, with_demand, with_limit, with_offer
from coral.core.plan.explain.wording import nodes_of
from coral.core.plan.supply import supply
from coral.hookspecs.planner import Library, View
from coral.types.hardware import Machine, Offer
from coral.types.model import ModelSpec
from coral.types.plan import Plan, PlannedInstances, PlannedMachines

Kind = Literal["offer", "demand", "template", "machine", "slo"]
Rebuilt = Callable[[View], Library]
"""The template library of a view whose models have other SLOs."""
LOOSER = 1.1


class Question(Struct, frozen=True, kw_only=True, eq=False):
    """`about` is for people; `what_if` the same change as an argument of the command, where there is one.
    `estimate_usd_h`: what the relaxation says of the change of cost."""

    kind: Kind
    about: str
    direction: Direction
    view: View
    library: Callable[[], Library]
    what_if: str | None = None
    estimate_usd_h: float | None = None
    service: tuple[str, str] | None = None
    """(model, phase) whose template is forbidden."""


def questions(
    view: View,
    library: Library,
    plan: Plan,
    guess: Estimates,
    *,
    few: int,
    rebuilt: Rebuilt | None,
) -> list[Question]:
    """The `few` most promising of each kind, and a second best for every service; one of each kind first,
    so that all kinds have an answer where the time is short. Where not all demand is served it is only
    asked what more of an offer would serve, and less of a machine would not."""
    kinds = [
        _offers(view, library, plan, guess)[:few],
        _machines(view, library, plan)[:few],
    ]
    if plan.satisfied:
        kinds += [
            _demand(view, library, guess)[:few],
            list(_templates(view, library, plan)),
            [] if rebuilt is None else _slos(view, plan, rebuilt)[:few],
        ]
    asked = [one for rank in zip_longest(*kinds) for one in rank if one is not None]
    return [one if _same_charges(view, one) else replace(one, direction="either") for one in asked]


def used_up(plan: Plan, offer: Offer) -> bool:
    return sum(m.new for m in plan.machines if _same(m, offer)) >= offer.obtainable


def _same_charges(view: View, question: Question) -> bool:
    """Whether initialization of a node is charged alike, or moves the way that the question does."""
    if all(one.initialization_s == 0 for one in view.models):
        return True
    before, after = _charges(view), _charges(question.view)
    moved = [after[key] - before[key] for key in before.keys() & after.keys()]
    if question.direction == "dearer":
        return all(one >= 0 for one in moved)
    return all(one <= 0 for one in moved)


def _charges(view: View) -> dict[tuple[object, ...], float]:
    """κ of a node, by domain, market or any, GPU, and size where nodes are whole machines."""
    have = supply(view)
    found: dict[tuple[object, ...], float] = {}
    for one in have.lots:
        for market in (None, one.market):
            if view.options.slices:
                found[one.domain, market, one.gpu] = have.gpu_price(one.domain, one.gpu, market)
            else:
                price = have.node_price(one.domain, one.gpu, one.gpus, market)
                found[one.domain, market, one.gpu, one.gpus] = price
    return found


def _offers(view: View, library: Library, plan: Plan, guess: Estimates) -> list[Question]:
    """Those that are used up, the most valuable by the estimate first; of equal ones the dearest."""
    binding = [one for one in view.offers if used_up(plan, one)]
    binding.sort(key=lambda one: (-guess.offers.get(one.key, 0.0), -one.price_usd_h, one.key))
    return [
        Question(
            kind="offer",
            about=f"one more {one.machine_type.name} ({one.market}) in {one.domain}",
            direction="cheaper",
            view=with_offer(view, one.key, obtainable=one.obtainable + 1),
            library=lambda: library,
            what_if=f"{offer_path(one, 'obtainable')}={one.obtainable + 1}",
            estimate_usd_h=-guess.offers[one.key] if one.key in guess.offers else None,
        )
        for one in binding
    ]


def _demand(view: View, library: Library, guess: Estimates) -> list[Question]:
    models = sorted(view.models, key=lambda one: (-guess.demand.get(one.name, 0.0), one.name))
    return [
        Question(
            kind="demand",
            about=f"one more request/s of {one.name}",
            direction="dearer",
            view=with_demand(view, one.name, one.demand.requests_per_s + 1.0),
            library=lambda: library,
            what_if=f"{model_path(one, 'demand')}={one.demand.requests_per_s + 1.0:.12g}",
            estimate_usd_h=guess.demand.get(one.name),
        )
        for one in models
    ]


def _templates(view: View, library: Library, plan: Plan) -> Iterator[Question]:
    for service in plan.services:
        chosen = main_template(plan, service.model, service.phase)
        if chosen is None:
            continue
        template = chosen.template
        changed, poorer = without(view, library, template.model, template.phase, template.nodes)
        yield Question(
            kind="template",
            about=f"{template.model} {template.phase} without {nodes_of(template)}",
            direction="dearer",
            view=changed,
            library=_always(poorer),
            service=(template.model, template.phase),
        )


def main_template(plan: Plan, model: str, phase: str) -> PlannedInstances | None:
    """The planned instances that give a service most of its throughput."""
    mine = [one for one in plan.instances if (one.template.model, one.template.phase) == (model, phase)]
    return max(mine, key=lambda one: one.count * one.template.throughput, default=None)


def _machines(view: View, library: Library, plan: Plan) -> list[Question]:
    """The kinds of machine that cost most first."""
    planned = sorted(plan.machines, key=lambda one: -(one.kept + one.new) * one.price_usd_h)
    asked = []
    for one in planned:
        changed = withheld(view, one)
        if changed is not None:
            held = "held" if one.new == 0 else "planned"
            asked.append(
                Question(
                    kind="machine",
                    about=f"one {held} {one.machine_type} ({one.market}) less in {one.domain}",
                    direction="dearer",
                    view=changed,
                    library=lambda: library,
                )
            )
    return asked


def withheld(view: View, planned: PlannedMachines) -> View | None:
    """The view in which one planned machine cannot be had: a new one, or else the held one on which the
    fewest nodes run, which is lost with what runs there."""
    if planned.new > 0:
        offers, taken = [], planned.new - 1
        for one in view.offers:
            if _same(planned, one):
                allowed = min(one.obtainable, taken)
                taken -= allowed
                one = replace(one, obtainable=allowed)
            offers.append(one)
        return replace(view, offers=tuple(offers))
    held = [one for one in view.machines if _held(planned, one)]
    if not held:
        return None
    nodes = [node.machine_id for one in view.running for node in one.nodes]
    gone = min(held, key=lambda one: (nodes.count(one.id), one.id))
    return replace(
        view,
        machines=tuple(one for one in view.machines if one.id != gone.id),
        running=tuple(one for one in view.running if all(n.machine_id != gone.id for n in one.nodes)),
    )


def _slos(view: View, plan: Plan, rebuilt: Rebuilt) -> list[Question]:
    """Loosened limits, those of the services that cost most first."""
    weight: dict[tuple[str, str], int] = {}
    for one in plan.instances:
        gpus = sum(kind.count * n for kind, n in one.template.nodes.items()) * one.count
        key = (one.template.model, one.template.phase)
        weight[key] = weight.get(key, 0) + gpus
    found: list[tuple[int, Question]] = []
    for spec in view.models:
        for limit, phase in (("prefill", "prefill"), ("decode", "decode")):
            gpus = weight.get((spec.name, phase), 0) + weight.get((spec.name, "mixed"), 0)
            if gpus > 0:
                found.append((-gpus, _slo(view, spec, limit, rebuilt)))
    return [question for _, question in sorted(found, key=lambda one: (one[0], one[1].about))]


def _slo(view: View, spec: ModelSpec, limit: str, rebuilt: Rebuilt) -> Question:
    now = spec.slo.prefill_s if limit == "prefill" else spec.slo.decode_s
    looser = round(now * LOOSER, 12)
    changed = with_limit(view, spec.name, limit, looser)
    return Question(
        kind="slo",
        about=f"{spec.name} {limit} in {looser * 1e3:.4g} ms, not {now * 1e3:.4g} ms",
        direction="either",
        view=changed,
        library=lambda: rebuilt(changed),
        what_if=f"{model_path(spec, f'slo.{limit}')}={looser * 1e3:.12g}ms",
    )


def _always(library: Library) -> Callable[[], Library]:
    return lambda: library


def _same(planned: PlannedMachines, offer: Offer) -> bool:
    return (planned.machine_type, planned.domain, planned.market, planned.price_usd_h) == (
        offer.machine_type.name,
        offer.domain,
        offer.market,
        offer.price_usd_h,
    )


def _held(planned: PlannedMachines, machine: Machine) -> bool:
    return (planned.machine_type, planned.domain, planned.market, planned.price_usd_h) == (
        machine.machine_type.name,
        machine.domain,
        machine.market,
        machine.price_usd_h,
    )
