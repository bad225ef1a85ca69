"""What more of which offers would serve all: see `mends`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from coral.core.plan.explain.mend import FEW, Mend, mend_of
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.what_if import offer_path, with_offer
from coral.hookspecs.planner import Library, View
from coral.types.hardware import Offer
from coral.types.plan import PlannedMachines

DEARER = 10.0
LEAST_PRICE = 1e-3
"""USD/h of what cannot be had, where its price is 0."""
ENOUGH = 10_000


def more_supply(view: View, library: Library, solves: Solves) -> Iterator[Mend]:
    """The least combination; where it is of several offers, also those of them that suffice alone."""
    extra = {one.key: _unheard_of(one) for one in view.offers}
    soft = solves.plan(replace(view, offers=(*view.offers, *extra.values())), library)
    if soft is None or not soft.satisfied:
        return
    short = {
        one.key: sum(m.new for m in soft.machines if _of(extra[one.key]) == _priced(m)) for one in view.offers
    }
    short = {key: count for key, count in short.items() if count > 0}
    if not short:
        return
    mend = _supplied(view, library, solves, short)
    if mend is not None:
        yield mend
    if len(short) > 1:
        for key in sorted(short, key=lambda key: -short[key])[:FEW]:
            alone = _alone(view, library, solves, key)
            if alone is not None:
                yield alone


def _alone(view: View, library: Library, solves: Solves, key: str) -> Mend | None:
    """More of one offer only."""
    offer = next(one for one in view.offers if one.key == key)
    unheard_of = _unheard_of(offer)
    soft = solves.plan(replace(view, offers=(*view.offers, unheard_of)), library)
    if soft is None or not soft.satisfied:
        return None
    count = sum(m.new for m in soft.machines if _of(unheard_of) == _priced(m))
    return _supplied(view, library, solves, {key: count}) if count else None


def _supplied(view: View, library: Library, solves: Solves, short: dict[str, int]) -> Mend | None:
    """Solved again at true prices with so many more of each offer."""
    changed = view
    what_if, about = [], []
    for one in view.offers:
        if one.key in short:
            most = one.obtainable + short[one.key]
            changed = with_offer(changed, one.key, obtainable=most)
            what_if.append(f"{offer_path(one, 'obtainable')}={most}")
            about.append(f"{short[one.key]} more {one.machine_type.name} ({one.market}) in {one.domain}")
    after = solves.plan(changed, library)
    return mend_of("supply", ", ".join(about), what_if, after)


def _unheard_of(offer: Offer) -> Offer:
    price = offer.price_usd_h * DEARER if offer.price_usd_h > 0 else LEAST_PRICE
    return replace(offer, price_usd_h=price, obtainable=ENOUGH)


def _of(offer: Offer) -> tuple[object, ...]:
    return (offer.machine_type.name, offer.domain, offer.market, offer.price_usd_h)


def _priced(planned: PlannedMachines) -> tuple[object, ...]:
    return (planned.machine_type, planned.domain, planned.market, planned.price_usd_h)
