"""GPU combos: prefill and decode instances of one model, in numbers that balance.

With a prefill and b decode instances a combo serves min(a·T_p/d_p, b·T_d/d_d) of the demand; its cost
efficiency is that over its price, which for one model orders combos as tokens per USD does.
"""

from __future__ import annotations

import numpy as np

from coral.core.plan.planners.bundles import Bundle
from coral.core.plan.problem import Problem
from coral.core.plan.services import coupled
from coral.types.program import Floats, Ints


def combos(problem: Problem, prices: Floats, *, most: int, candidates: int | None = None) -> list[Bundle]:
    """The best combos of up to `most` instances a phase: for every pair of templates the most efficient
    numbers, and one of each. At most `candidates` for a model in a domain (in all of them where
    phases are not coupled), the most efficient ones."""
    found: list[Bundle] = []
    for model, place, prefill, decode in _pairs(problem, prices):
        some = [
            bundle
            for p in prefill
            for d in decode
            for bundle in _balanced(problem, prices, model, place, int(p), int(d), most)
        ]
        some.sort(key=lambda one: (one.price_usd_h / one.rate, -one.rate, sorted(one.lines)))
        found += some if candidates is None else some[:candidates]
    return found


def _pairs(problem: Problem, prices: Floats) -> list[tuple[int, int | None, Ints, Ints]]:
    """(model, place, prefill columns, decode columns) wherever a model has both: by domain, or where phases
    are not coupled, over all domains (place None)."""
    out: list[tuple[int, int | None, Ints, Ints]] = []
    every = np.unique(problem.places)
    for model, spec in enumerate(problem.view.models):
        own = {n.phase: i for i, n in enumerate(problem.needs) if n.model == model and n.demand > 0}
        if "prefill" not in own or "decode" not in own:
            continue
        for places in [[int(at)] for at in every] if coupled(spec, problem.view) else [every.tolist()]:
            prefill, decode = (
                _shortlist(problem, prices, own[phase], places) for phase in ("prefill", "decode")
            )
            if prefill.size and decode.size:
                out.append((model, places[0] if len(places) == 1 else None, prefill, decode))
    return out


def _shortlist(problem: Problem, prices: Floats, service: int, places: list[int]) -> Ints:
    """Of every set of node types in every site the most efficient template, the fastest and the cheapest."""
    columns = problem.columns
    lines = np.flatnonzero(
        (columns.kept < 0)
        & (columns.service == service)
        & np.isin(problem.places[columns.domain], places)
        & (columns.upper >= 1)
        & np.isfinite(prices)
    )
    by_kind: dict[tuple[int, bytes], list[int]] = {}
    for line in lines:
        key = (int(columns.domain[line]), (columns.usage[line] > 0).tobytes())
        by_kind.setdefault(key, []).append(int(line))
    chosen: set[int] = set()
    for some in by_kind.values():
        chosen.add(min(some, key=lambda j: (prices[j] / columns.throughput[j], j)))
        chosen.add(max(some, key=lambda j: (columns.throughput[j], -j)))
        chosen.add(min(some, key=lambda j: (prices[j], -columns.throughput[j], j)))
    return np.array(sorted(chosen), dtype=np.int64)


def _balanced(
    problem: Problem, prices: Floats, model: int, place: int | None, p: int, d: int, most: int
) -> list[Bundle]:
    columns = problem.columns
    services = (int(columns.service[p]), int(columns.service[d]))
    shares = [
        float(columns.throughput[j]) / problem.needs[i].demand for j, i in zip((p, d), services, strict=True)
    ]
    limits = [int(min(most, columns.upper[j])) for j in (p, d)]
    a, b = np.meshgrid(np.arange(1, limits[0] + 1), np.arange(1, limits[1] + 1), indexing="ij")
    rate = np.minimum(a * shares[0], b * shares[1]).ravel()
    price = (a * prices[p] + b * prices[d]).ravel()
    best = int(np.lexsort(((a + b).ravel(), price / rate))[0])
    sites = {int(columns.domain[j]) for j in (p, d)}
    within = place if place is not None or len(sites) > 1 else int(problem.places[sites.pop()])
    return [
        Bundle(
            model=model,
            place=within,
            services=services,
            lines={p: int(a.flat[at]), d: int(b.flat[at])},
            price_usd_h=float(price[at]),
            rate=float(rate[at]),
        )
        for at in sorted({0, best})
    ]
