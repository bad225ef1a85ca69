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
promise
    No share of a model that is to survive the loss of a zone or a machine, or any share on spot machines.

Plain data, the layout of `mends` in `coral plan --json`::

    [{kind, about, what_if: [path=value], price_usd_h, cost_usd_h, gap}]

Every change that is told was solved: the plan that it leads to serves everything, at the cost stated. Where
the time ends or a search finds nothing, there is no change of that kind here, which does not say that
there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from coral.core.plan.explain.constraints import gpus
from coral.core.plan.explain.looser_slo import looser_slos
from coral.core.plan.explain.mend import FEW, Mend, mend_of, unmet
from coral.core.plan.explain.more_supply import more_supply
from coral.core.plan.explain.questions import Rebuilt
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.what_if import model_path, with_demand
from coral.hookspecs.planner import Library, View
from coral.types.model import ModelSpec
from coral.types.plan import Plan


def mends(
    view: View, library: Library, plan: Plan, solves: Solves, *, rebuilt: Rebuilt | None = None
) -> tuple[Mend, ...]:
    """None where the plan serves all. Of each kind the least found within the time of `solves`."""
    if plan.satisfied:
        return ()
    more = [*_caps(view, library, solves), *more_supply(view, library, solves)]
    fewer = list(_demand(view, library, plan, solves))
    looser = (
        [] if rebuilt is None else list(looser_slos(view, library, plan, solves, rebuilt))
    )  # takes longest
    return (*more, *looser, *fewer, *_promises(view, library, solves))


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
    mend = mend_of("limit", about, [f"{path}={value}"], after)
    if mend is not None:
        yield mend


def _promises(view: View, library: Library, solves: Solves) -> Iterator[Mend]:
    """What is promised beyond serving, no longer promised, one by one."""
    asked: list[tuple[View, str, str]] = []
    for spec in view.models:
        if spec.survive_zone > 0:
            free = _with_model(view, replace(spec, survive_zone=0.0))
            asked.append(
                (free, f"{spec.name} need not survive the loss of a zone", _off(spec, "survive_zone"))
            )
        if spec.survive_machine > 0:
            free = _with_model(view, replace(spec, survive_machine=0.0))
            about = f"{spec.name} need not survive the loss of a machine"
            asked.append((free, about, _off(spec, "survive_machine")))
    if view.options.spot_share < 1:
        free = replace(view, options=replace(view.options, spot_share=1.0))
        asked.append((free, "all may be on spot machines", "plan.spot_share=1"))
    for free, about, what_if in asked:
        mend = mend_of("promise", about, [what_if], solves.plan(free, library))
        if mend is not None:
            yield mend


def _off(spec: ModelSpec, name: str) -> str:
    return f"{model_path(spec, name)}=0"


def _with_model(view: View, changed: ModelSpec) -> View:
    models = tuple(changed if one.name == changed.name else one for one in view.models)
    return replace(view, models=models)


def _ceiled(usd_h: float) -> float:
    """Up to a hundredth."""
    return math.ceil(usd_h * 100 - 1e-6) / 100


def _demand(view: View, library: Library, plan: Plan, solves: Solves) -> Iterator[Mend]:
    for spec in unmet(view, plan)[:FEW]:
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
        mend = mend_of("demand", about, [f"{model_path(spec, 'demand')}={requests_per_s:.12g}"], after)
        if mend is not None:
            yield mend


def _floored(requests_per_s: float) -> float:
    """Rounded down to four digits, but for what rounding has lost."""
    if requests_per_s <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(requests_per_s)) - 3)
    return float(f"{math.floor(requests_per_s * (1 + 1e-9) / unit) * unit:.12g}")
