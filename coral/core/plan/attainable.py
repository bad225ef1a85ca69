"""Demands brought down to what could be served of them at most, where that is next to nothing.

A served fraction below a solver's tolerance is none: of 10^10 requests/s it would serve nobody rather than
the 1000 that all machines together can serve. A demand is therefore stated as a demand for σ of it, where
σ is a bound on its fraction by the supply: each GPU of the market does at best what the best template with
a GPU of that model does per GPU, so that Σ_g U_g·max_τ'(T'/|U'|) ≥ T for every template τ.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.problem import Problem
from coral.types.program import Floats

TINY = 1e-3
"""Demands of which no more than this share can be served are brought down."""


class Attainable(Struct, frozen=True, kw_only=True, eq=False):
    """The problem with smaller demands, and σ (models,) of each: 1 where it is as it was.

    `weights` (models,): what a fraction of the smaller demand counts for beside another model's. Their
    true ratio, but at least `TINY`, so that a demand beyond all measure is still served with what is left.
    """

    problem: Problem
    shares: Floats
    weights: Floats


def attainable(problem: Problem) -> Attainable:
    """For soft demand alone: a plan that serves all of a smaller demand does not serve the demand."""
    models = problem.view.models
    able = np.array([_able(problem, service) for service in range(len(problem.needs))])
    shares = np.ones(len(models))
    for model in range(len(models)):
        mine = [i for i, need in enumerate(problem.needs) if need.model == model and need.demand > 0]
        rates = {i: able[i] / problem.needs[i].demand for i in mine}
        apart = [rates[i] for i in mine if problem.needs[i].phase != "mixed"]
        mixed = [rates[i] for i in mine if problem.needs[i].phase == "mixed"]
        most = min(apart, default=0.0) + sum(mixed)
        if 0 < most < TINY:
            shares[model] = most
    if (shares == 1.0).all():
        return Attainable(problem=problem, shares=shares, weights=shares)
    smaller = tuple(replace(need, demand=need.demand * shares[need.model]) for need in problem.needs)
    specs = tuple(
        replace(spec, floor=min(1.0, spec.floor / share)) for spec, share in zip(models, shares, strict=True)
    )
    return Attainable(
        problem=replace(problem, needs=smaller, view=replace(problem.view, models=specs)),
        shares=shares,
        weights=np.maximum(shares / shares.max(), TINY),
    )


def _able(problem: Problem, service: int) -> float:
    """A bound on the throughput of a service, were all machines its own."""
    columns = problem.columns
    gpus = np.array([kind.count for kind in problem.node_types], dtype=np.float64)
    total = 0.0
    for index, site in enumerate(problem.sites):
        here = (columns.service == service) & (columns.domain == index)
        usage = columns.usage[here]
        each = columns.throughput[here] / np.maximum(usage @ gpus, 1.0)
        for name in {kind.gpu for kind in problem.node_types}:
            ours = [at for at, kind in enumerate(problem.node_types) if kind.gpu == name]
            best = each[(usage[:, ours] > 0).any(axis=1)].max(initial=0.0)
            total += best * sum(lot.gpus * lot.limit for lot in (*site.lots, *site.shaped) if lot.gpu == name)
    return total
