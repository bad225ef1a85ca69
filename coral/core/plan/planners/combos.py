"""GPU combos: prefill and decode instances of one model in one domain, in numbers that balance.

With a prefill and b decode instances a combo serves min(a·T_p/d_p, b·T_d/d_d) of the demand; its cost
efficiency is that over its price, which for one model orders combos as tokens per USD does.
"""

from __future__ import annotations

import numpy as np

from coral.core.plan.planners.bundles import Bundle
from coral.core.plan.problem import Problem
from coral.types.program import Floats, Ints


def combos(problem: Problem, prices: Floats, *, most: int, candidates: int | None = None) -> list[Bundle]:
    """The best combos of up to `most` instances a phase: for every pair of templates the most efficient
    numbers, and one of each. At most `candidates` for a model in a domain, the most efficient ones."""
    found: list[Bundle] = []
    for model, domain, prefill, decode in _pairs(problem, prices):
        some = [
            bundle
            for p in prefill
            for d in decode
            for bundle in _balanced(problem, prices, model, domain, int(p), int(d), most)
        ]
        some.sort(key=lambda one: (one.price_usd_h / one.rate, -one.rate, sorted(one.lines)))
        found += some if candidates is None else some[:candidates]
    return found


def _pairs(problem: Problem, prices: Floats) -> list[tuple[int, int, Ints, Ints]]:
    """(model, domain, prefill columns, decode columns) wherever a model has both."""
    out = []
    for model in range(len(problem.view.models)):
        own = {n.phase: i for i, n in enumerate(problem.needs) if n.model == model and n.demand > 0}
        if "prefill" not in own or "decode" not in own:
            continue
        for domain in range(len(problem.sites)):
            prefill, decode = (
                _shortlist(problem, prices, own[phase], domain) for phase in ("prefill", "decode")
            )
            if prefill.size and decode.size:
                out.append((model, domain, prefill, decode))
    return out


def _shortlist(problem: Problem, prices: Floats, service: int, domain: int) -> Ints:
    columns = problem.columns
    lines = np.flatnonzero(
        (columns.kept < 0)
        & (columns.service == service)
        & (columns.domain == domain)
        & (columns.upper >= 1)
        & np.isfinite(prices)
    )
    by_kind: dict[bytes, list[int]] = {}
    for line in lines:
        by_kind.setdefault((columns.usage[line] > 0).tobytes(), []).append(int(line))
    chosen: set[int] = set()
    for some in by_kind.values():
        chosen.add(min(some, key=lambda j: (prices[j] / columns.throughput[j], j)))
        chosen.add(max(some, key=lambda j: (columns.throughput[j], -j)))
        chosen.add(min(some, key=lambda j: (prices[j], -columns.throughput[j], j)))
    return np.array(sorted(chosen), dtype=np.int64)


def _balanced(
    problem: Problem, prices: Floats, model: int, domain: int, p: int, d: int, most: int
) -> list[Bundle]:
    columns = problem.columns
    services = (int(columns.service[p]), int(columns.service[d]))
    shares = [
        float(columns.throughput[j]) / problem.needs[i].demand for j, i in zip((p, d), services, strict=True)
    ]
    limits = [int(min(most, columns.upper[j])) for j in (p, d)]
    sizes = [(a, b) for a in range(1, limits[0] + 1) for b in range(1, limits[1] + 1)]

    def worth(size: tuple[int, int]) -> tuple[float, int]:
        a, b = size
        price = a * prices[p] + b * prices[d]
        return (float(price) / min(a * shares[0], b * shares[1]), a + b)

    picked = {min(sizes, key=worth), (1, 1)} if sizes else set()
    return [
        Bundle(
            model=model,
            domain=domain,
            services=services,
            lines={p: a, d: b},
            price_usd_h=float(a * prices[p] + b * prices[d]),
            rate=min(a * shares[0], b * shares[1]),
        )
        for a, b in sorted(picked)
    ]
