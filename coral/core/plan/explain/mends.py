"""Where not all demand can be served: the least changes, one at a time, after which it can.

limit
    A budget, or a model's limit on GPUs or cost, that is higher: what the plan needs that knows none.
supply
    More of some offers. Each offer is doubled by one without end at `DEARER` times its price, so that the
    plan takes as little as it can of what is not there, for least money; what it takes of it is then
    made obtainable, and the view is solved again at its true prices.
demand
    Less of one model: all others must be served whole (their `floor` is 1), and it as far as it can be.
slo
    A looser latency limit of one model, the first on a ladder of factors that serves all; its templates
    are built anew for each.

Every change that is told was solved: the plan that it leads to serves everything, at the cost stated. Where
the time ends or a search finds nothing, there is no change of that kind here, which does not say that
there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.explain.constraints import gpus
from coral.core.plan.explain.figure import cost
from coral.core.plan.explain.questions import Rebuilt
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.what_if import model_path, offer_path, with_demand, with_limit, with_offer
from coral.errors import CoralError
from coral.hookspecs.planner import Library, View
from coral.types.hardware import Offer
from coral.types.model import ModelSpec, Phase
from coral.types.plan import Plan, PlannedMachines

DEARER = 10.0
LEAST_PRICE = 1e-3
"""USD/h of what cannot be had, where its price is 0."""
ENOUGH = 10_000
LADDER = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
FAR_LADDER = tuple(10.0**e for e in range(2, 13))
"""Only for a service that has no template at all."""
BETWEEN = (0.2, 0.5)
"""Of the step of the far ladder that serves all: whether less does."""
FEW = 3


class Mend(Struct, frozen=True, kw_only=True):
    """`what_if`: the change as arguments of `--what-if`. The others are of the plan after it: its machines'
    price, its cost with initialization, its gap."""

    kind: Literal["limit", "supply", "demand", "slo"]
    about: str
    what_if: tuple[str, ...]
    price_usd_h: float
    cost_usd_h: float
    gap: float | None


def mends(
    view: View, library: Library, plan: Plan, solves: Solves, *, rebuilt: Rebuilt | None = None
) -> tuple[Mend, ...]:
    """None where the plan serves all. Of each kind the least found within the time of `solves`."""
    if plan.satisfied:
        return ()
    more = [*_caps(view, library, solves), *_supply(view, library, solves)]
    fewer = list(_demand(view, library, plan, solves))
    looser = [] if rebuilt is None else list(_slos(view, library, plan, solves, rebuilt))  # takes longest
    return (*more, *looser, *fewer)


def _caps(view: View, library: Library, solves: Solves) -> Iterator[Mend]:
    """A budget or a model's limit on GPUs raised to what is needed then; other limits of a model dropped."""
    if view.options.budget_usd_h is not None:
        free = replace(view, options=replace(view.options, budget_usd_h=None))
        yield from _raised(free, library, solves, "plan.budget", lambda plan: _ceiled(plan.price_usd_h))
    for spec in view.models:
        if spec.max_gpus is not None:
            free = _with_model(view, replace(spec, max_gpus=None))
            path = model_path(spec, "max_gpus")
            yield from _raised(free, library, solves, path, partial(gpus, model=spec.name))
        if spec.max_cost_usd_h is not None:
            free = _with_model(view, replace(spec, max_cost_usd_h=None))
            yield from _raised(free, library, solves, model_path(spec, "max_cost"), None)


def _raised(
    free: View, library: Library, solves: Solves, path: str, needed: Callable[[Plan], float] | None
) -> Iterator[Mend]:
    after = solves.plan(free, library)
    if after is None or not after.satisfied:
        return
    value = "null" if needed is None else f"{needed(after):.12g}"
    about = f"{path} of {value}" if needed is not None else f"no {path}"
    mend = _mend("limit", about, [f"{path}={value}"], after)
    if mend is not None:
        yield mend


def _with_model(view: View, changed: ModelSpec) -> View:
    models = tuple(changed if one.name == changed.name else one for one in view.models)
    return replace(view, models=models)


def _ceiled(usd_h: float) -> float:
    """Up to a hundredth."""
    return math.ceil(usd_h * 100 - 1e-6) / 100


def _supply(view: View, library: Library, solves: Solves) -> Iterator[Mend]:
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
    return _mend("supply", ", ".join(about), what_if, after)


def _unheard_of(offer: Offer) -> Offer:
    price = offer.price_usd_h * DEARER if offer.price_usd_h > 0 else LEAST_PRICE
    return replace(offer, price_usd_h=price, obtainable=ENOUGH)


def _of(offer: Offer) -> tuple[object, ...]:
    return (offer.machine_type.name, offer.domain, offer.market, offer.price_usd_h)


def _priced(planned: PlannedMachines) -> tuple[object, ...]:
    return (planned.machine_type, planned.domain, planned.market, planned.price_usd_h)


def _demand(view: View, library: Library, plan: Plan, solves: Solves) -> Iterator[Mend]:
    for spec in _unmet(view, plan)[:FEW]:
        others = tuple(one if one.name == spec.name else replace(one, floor=1.0) for one in view.models)
        most = solves.plan(replace(view, models=others), library)
        if most is None or not all(one.met for one in most.services if one.model != spec.name):
            continue
        fraction = min(one.fraction for one in most.services if one.model == spec.name)
        requests_per_s = _floored(spec.demand.requests_per_s * fraction)
        after = solves.plan(with_demand(view, spec.name, requests_per_s), library)
        about = f"{requests_per_s:g} requests/s of {spec.name} instead of {spec.demand.requests_per_s:g}"
        if requests_per_s == 0:
            about = f"{spec.name} not served at all"
        mend = _mend("demand", about, [f"{model_path(spec, 'demand')}={requests_per_s:.12g}"], after)
        if mend is not None:
            yield mend


def _floored(requests_per_s: float) -> float:
    """Rounded down to four digits, but for what rounding has lost."""
    if requests_per_s <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(requests_per_s)) - 3)
    return float(f"{math.floor(requests_per_s * (1 + 1e-9) / unit) * unit:.12g}")


def _slos(view: View, library: Library, plan: Plan, solves: Solves, rebuilt: Rebuilt) -> Iterator[Mend]:
    for spec in _unmet(view, plan)[:FEW]:
        for limit in ("prefill", "decode"):
            short = [
                one.phase
                for one in plan.services
                if one.model == spec.name and not one.met and one.phase in (limit, "mixed")
            ]
            if short:
                mend = _loosened(view, spec, limit, short[0], library, solves, rebuilt)
                if mend is not None:
                    yield mend


def _loosened(
    view: View,
    spec: ModelSpec,
    limit: str,
    phase: Phase,
    library: Library,
    solves: Solves,
    rebuilt: Rebuilt,
) -> Mend | None:
    now = spec.slo.prefill_s if limit == "prefill" else spec.slo.decode_s

    def has_templates(built: Library) -> bool:
        return bool((built.table(spec.name, phase).throughput > 0).any())

    def tried(factor: float) -> Mend | None:
        looser = float(f"{now * factor:.6g}")
        changed = with_limit(view, spec.name, limit, looser)
        built = None if solves.over else _built(changed, rebuilt)
        if built is None or not has_templates(built):
            return None
        about = f"{limit} of {spec.name} in {_duration(looser)} instead of {_duration(now)}"
        what_if = [f"{model_path(spec, f'slo.{limit}')}={_duration(looser)}"]
        return _mend("slo", about, what_if, solves.plan(changed, built))

    ladder: tuple[float, ...] = LADDER
    if not has_templates(library):
        loosest = _built(with_limit(view, spec.name, limit, now * FAR_LADDER[-1]), rebuilt)
        if loosest is None or not has_templates(loosest):
            return None  # it is not for this limit that there are none
        ladder = (*LADDER, *FAR_LADDER)
    for factor in ladder:
        mend = tried(factor)
        if mend is not None:
            nearer = (tried(factor * share) for share in BETWEEN) if factor in FAR_LADDER else iter(())
            return next((one for one in nearer if one is not None), mend)
    return None


def _built(view: View, rebuilt: Rebuilt) -> Library | None:
    try:
        return rebuilt(view)
    except CoralError:  # templates that cannot be built are none
        return None


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.12g}s"
    return f"{seconds * 1e3:.12g}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.12g}us"


def _unmet(view: View, plan: Plan) -> list[ModelSpec]:
    """Models with unmet demand, the worst served first."""
    worst: dict[str, float] = {}
    for one in plan.services:
        if not one.met:
            worst[one.model] = min(worst.get(one.model, 1.0), one.fraction)
    models = [one for one in view.models if one.name in worst]
    return sorted(models, key=lambda one: (worst[one.name], one.name))


def _mend(
    kind: Literal["limit", "supply", "demand", "slo"], about: str, what_if: list[str], after: Plan | None
) -> Mend | None:
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
