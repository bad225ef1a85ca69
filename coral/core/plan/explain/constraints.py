"""Which limits a plan stands at. Read off the plan; nothing is solved here.

A supply limit binds where all that can be had is taken. A demand binds where the plan could not do without
any one instance of the service. (In a program of whole machines every limit may matter, also one with
room to spare: what it is worth is a question of its own.)
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from coral.hookspecs.planner import View
from coral.types.hardware import Offer
from coral.types.plan import Plan, Service


class Constraint(Struct, frozen=True, kw_only=True):
    """`used` of `limit` in `unit`; `binds` says whether there is nothing left that helps."""

    kind: Literal["supply", "demand", "budget", "gpus"]
    about: str
    used: float
    limit: float
    unit: str
    binds: bool


def constraints(view: View, plan: Plan) -> tuple[Constraint, ...]:
    return (
        *(_supply(plan, one) for one in view.offers),
        *(_demand(plan, one) for one in plan.services if one.demand > 0),
        *_caps(view, plan),
    )


def _supply(plan: Plan, offer: Offer) -> Constraint:
    taken = sum(
        one.new
        for one in plan.machines
        if (one.machine_type, one.domain, one.market, one.price_usd_h)
        == (offer.machine_type.name, offer.domain, offer.market, offer.price_usd_h)
    )
    return Constraint(
        kind="supply",
        about=offer.key,
        used=taken,
        limit=offer.obtainable,
        unit="machines",
        binds=taken >= offer.obtainable,
    )


def _demand(plan: Plan, service: Service) -> Constraint:
    """`used` is the capacity, `limit` the least it may be."""
    each = [
        one.template.throughput
        for one in plan.instances
        if (one.template.model, one.template.phase) == (service.model, service.phase)
    ]
    spare = service.capacity - service.demand
    return Constraint(
        kind="demand",
        about=f"{service.model} {service.phase}",
        used=service.capacity,
        limit=service.demand,
        unit="requests/s" if service.phase == "mixed" else "tokens/s",
        binds=spare < min(each, default=float("inf")),
    )


def _caps(view: View, plan: Plan) -> list[Constraint]:
    found = []
    budget = view.options.budget_usd_h
    if budget is not None:
        cheapest = min((one.price_usd_h for one in view.offers if one.obtainable > 0), default=0.0)
        found.append(
            Constraint(
                kind="budget",
                about="plan.budget",
                used=plan.price_usd_h,
                limit=budget,
                unit="USD/h",
                binds=plan.price_usd_h + cheapest > budget,
            )
        )
    for spec in view.models:
        if spec.max_gpus is not None:
            taken = gpus(plan, spec.name)
            found.append(
                Constraint(
                    kind="gpus",
                    about=spec.name,
                    used=taken,
                    limit=spec.max_gpus,
                    unit="GPUs",
                    binds=taken >= spec.max_gpus,
                )
            )
    return found


def gpus(plan: Plan, model: str) -> int:
    """GPUs that the model's instances take."""
    return sum(
        one.count * sum(kind.count * n for kind, n in one.template.nodes.items())
        for one in plan.instances
        if one.template.model == model
    )
