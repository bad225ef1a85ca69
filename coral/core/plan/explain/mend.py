"""One change after which everything is served."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from coral.core.plan.explain.figure import cost
from coral.hookspecs.planner import View
from coral.types.model import ModelSpec
from coral.types.plan import Plan

Kind = Literal["limit", "supply", "demand", "slo", "promise"]
FEW = 3
"""Offers or models that are tried alone."""


class Mend(Struct, frozen=True, kw_only=True):
    """`what_if`: the change as arguments of `--what-if`. The others are of the plan after it: its machines'
    price, its cost with initialization, its gap."""

    kind: Kind
    about: str
    what_if: tuple[str, ...]
    price_usd_h: float
    cost_usd_h: float
    gap: float | None


def mend_of(kind: Kind, about: str, what_if: list[str], after: Plan | None) -> Mend | None:
    if after is None or not after.satisfied:
        return None
    gap = after.certificate.gap if after.certificate is not None else None
    return Mend(
        kind=kind,
        about=about,
        what_if=tuple(what_if),
        price_usd_h=after.price_usd_h,
        cost_usd_h=cost(after),
        gap=gap,
    )


def unmet(view: View, plan: Plan) -> list[ModelSpec]:
    """Models with unmet demand, the worst served first."""
    worst: dict[str, float] = {}
    for one in plan.services:
        if not one.met:
            worst[one.model] = min(worst.get(one.model, 1.0), one.fraction)
    models = [one for one in view.models if one.name in worst]
    return sorted(models, key=lambda one: (worst[one.name], one.name))
