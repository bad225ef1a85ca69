"""One figure of an explanation: by how much the plan changes, and how far that is known.

Let a* and b* be the least costs before and after a change, each between a plan's bound and its cost. Then::

    bound(after) - cost(before)  ≤  b* - a*  ≤  cost(after) - bound(before)

The change is told apart from nothing where this range does not hold 0. Where a change can only take
something away (a template) b* ≥ a*, where it can only add b* ≤ a*: the range ends at 0 then. It can do
either where it also moves the mean prices by which initialization is charged.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from coral.types.plan import ROUNDING, Plan

How = Literal["re-solved", "estimated"]
Direction = Literal["dearer", "cheaper", "either"]
"""What a change can do at most: take away, so that plans are dearer, or add, or both."""


class Served(Struct, frozen=True, kw_only=True):
    """Served share of a (model, phase) before and after."""

    model: str
    phase: str
    before: float
    after: float


class Figure(Struct, frozen=True, kw_only=True):
    """A change of the plan's cost, USD/h, positive where it costs more.

    `usd_h` is the difference of the plans found, None where one of them does not serve all; `least_usd_h`
    and `most_usd_h` hold the difference of the best plans, None where a plan has no bound. `gap` is that of
    the plan after the change. `served` lists the services of which another share is served, `unkept` what
    else was asked and holds no more (floors, caps, what survives a loss).
    """

    how: How
    usd_h: float | None
    least_usd_h: float | None = None
    most_usd_h: float | None = None
    told_apart: bool = False
    gap: float | None = None
    served: tuple[Served, ...] = ()
    unkept: tuple[str, ...] = ()


def difference(before: Plan, after: Plan, direction: Direction) -> Figure:
    """Of two plans that were both solved."""
    served = tuple(
        Served(model=one.model, phase=one.phase, before=old.fraction, after=one.fraction)
        for old, one in zip(before.services, after.services, strict=True)
        if abs(one.fraction - old.fraction) > ROUNDING
    )
    gap = after.certificate.gap if after.certificate is not None else None
    if not (before.satisfied and after.satisfied):
        unkept = tuple(one for one in after.unkept if one not in before.unkept)
        apart = bool(served or unkept)
        return Figure(how="re-solved", usd_h=None, told_apart=apart, gap=gap, served=served, unkept=unkept)
    usd_h = cost(after) - cost(before)
    if before.certificate is None or after.certificate is None:
        return Figure(how="re-solved", usd_h=usd_h, gap=gap)
    least = after.certificate.bound_usd_h - before.certificate.cost_usd_h
    most = after.certificate.cost_usd_h - before.certificate.bound_usd_h
    if direction == "dearer":
        least, usd_h, most = max(least, 0.0), max(usd_h, 0.0), max(most, 0.0)
    elif direction == "cheaper":
        least, usd_h, most = min(least, 0.0), min(usd_h, 0.0), min(most, 0.0)
    seen = 1e-6 * max(1.0, cost(before))
    return Figure(
        how="re-solved",
        usd_h=usd_h,
        least_usd_h=least,
        most_usd_h=most,
        told_apart=least > seen or most < -seen,
        gap=gap,
    )


def cost(plan: Plan) -> float:
    """The objective: machines and initialization, USD/h."""
    if plan.certificate is not None:
        return plan.certificate.cost_usd_h
    return plan.price_usd_h + plan.initialization_usd_h
