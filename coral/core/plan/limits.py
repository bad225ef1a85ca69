"""Caps on what a model may take, and on what everything may cost.

gpus     Σ_k k·U_k(τ) ν  ≤  max_gpus            over the model's columns, kept and new
cost     Σ_k U_k(τ) κ_k ν  ≤  max_cost          κ_k: k × the GPU's mean price in the site
budget   Σ_c p_c N_c  ≤  budget                 what the machines cost, without initialization

Machines are shared, so a model's cost is by definition its GPUs at their mean price; GPUs that nobody
uses are charged to nobody. Under a cap or a budget demand is soft: what cannot be had within it is not
served.

Reductions. All count nodes or machines, and a split template has the same nodes: what is irreducible
stays so. A ceiling on the *number of instances* would be otherwise (a split has one more), and is
therefore no option.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from coral.core.plan.draft import Draft
from coral.core.plan.problem import Problem
from coral.hookspecs.planner import View
from coral.types.program import Floats, Ints

TOLERANCE = 1e-6
"""What may be exceeded by a solver's rounding, relative to the limit."""


def gpus_of(problem: Problem) -> Floats:
    """(columns,): GPUs of one instance."""
    each = np.array([float(kind.count) for kind in problem.node_types])
    taken: Floats = problem.columns.usage @ each
    return taken


def shares_of(problem: Problem) -> Floats:
    """(columns,): what one instance's share of the machines costs, USD/h."""
    columns = problem.columns
    out = np.zeros(len(columns))
    for index, site in enumerate(problem.sites):
        here = columns.domain == index
        out[here] = columns.usage[here] @ site.prices
    return out


def model_of(problem: Problem) -> Ints:
    """(columns,): the model that a column serves."""
    models = np.array([need.model for need in problem.needs], dtype=np.int64)
    found: Ints = models[problem.columns.service]
    return found


def limit(draft: Draft, problem: Problem, nu: Ints, priced: Iterable[tuple[int, float]]) -> None:
    """`priced`: the columns of machines and their prices, USD/h."""
    models = model_of(problem)
    for index, spec in enumerate(problem.view.models):
        mine = np.flatnonzero(models == index)
        if spec.max_gpus is not None:
            row = draft.rows("gpus", 1, upper=float(spec.max_gpus), model=index)
            draft.builder.entries(row, nu[mine], gpus_of(problem)[mine])
        if spec.max_cost_usd_h is not None:
            row = draft.rows("cost", 1, upper=spec.max_cost_usd_h, model=index)
            draft.builder.entries(row, nu[mine], shares_of(problem)[mine])
    budget = problem.view.options.budget_usd_h
    if budget is not None:
        row = draft.rows("budget", 1, upper=budget)
        machines = list(priced)
        draft.builder.entries(row, [column for column, _ in machines], [price for _, price in machines])


def limits_of(view: View) -> list[str]:
    """The budget and caps of a view, in words."""
    found = []
    if view.options.budget_usd_h is not None:
        found.append(f"the budget of {view.options.budget_usd_h:.6g} USD/h")
    for spec in view.models:
        if spec.max_cost_usd_h is not None:
            found.append(f"the cap of {spec.max_cost_usd_h:.6g} USD/h on {spec.name}")
        if spec.max_gpus is not None:
            found.append(f"the cap of {spec.max_gpus} GPUs on {spec.name}")
    return found


def without_limits(view: View) -> View:
    models = tuple(replace(spec, max_cost_usd_h=None, max_gpus=None) for spec in view.models)
    return replace(view, models=models, options=replace(view.options, budget_usd_h=None))


def exceeded(problem: Problem, counts: Ints, machines: Sequence[Sequence[int]]) -> list[str]:
    """What goes over a cap or the budget, counted again from the numbers of instances and machines."""
    found = []
    models, gpus, costs = model_of(problem), gpus_of(problem), shares_of(problem)
    for index, spec in enumerate(problem.view.models):
        mine = models == index
        taken, cost = float(gpus[mine] @ counts[mine]), float(costs[mine] @ counts[mine])
        if spec.max_gpus is not None and _over(taken, spec.max_gpus):
            found.append(f"{spec.name} takes {taken:g} GPUs, {spec.max_gpus} are allowed")
        if spec.max_cost_usd_h is not None and _over(cost, spec.max_cost_usd_h):
            found.append(f"{spec.name} costs {cost:.6g} USD/h, {spec.max_cost_usd_h:.6g} are allowed")
    budget = problem.view.options.budget_usd_h
    price = sum(
        count * site.lot(at).price_usd_h
        for site, row in zip(problem.sites, machines, strict=True)
        for at, count in enumerate(row)
    )
    if budget is not None and _over(price, budget):
        found.append(f"the machines cost {price:.6g} USD/h, the budget is {budget:.6g}")
    return found


def _over(value: float, limit: float) -> bool:
    return value > limit + TOLERANCE * max(1.0, limit)
