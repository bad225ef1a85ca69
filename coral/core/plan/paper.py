"""The paper's allocation (arXiv 2605.04357), word for word, without reductions: to check ours against.

min Σ ν p + I    Σ_τ U_c(τ) ν ≤ A_r(c)    Σ_{τ,r} T(τ) ν ≥ T_m    I ≥ (ν − ν′) p K,  I ≥ 0    ν integer

(The text as parsed reads `I ≥ ν − ν′·p·K`; an instance's initialization is p·K, so (ν − ν′) p K is meant.)
A node is a whole machine, so A_r(c) counts machines of a size, and p is the price of a template's machines.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.allocation import Allocation
from coral.core.plan.markets import markets_apart
from coral.core.plan.problem import Problem
from coral.core.plan.services import initialization_share
from coral.core.plan.survival import promised
from coral.errors import UsageError
from coral.hookspecs.planner import ProgramBuilder
from coral.types.program import Floats, Ints, Program


class PaperForm(Struct, frozen=True, kw_only=True, eq=False):
    """`lines` (ν variables,): a column of the problem for each; `kept` its kept twin, or -1."""

    program: Program
    lines: Ints
    kept: Ints


def paper_form(problem: Problem) -> PaperForm:
    """Of a problem stated without reductions. Raises UsageError for what the paper's form cannot say."""
    options = problem.view.options
    if options.slices or options.couple_phases:
        raise UsageError(
            "the paper's form knows whole machines and independent phases only",
            mend="set `plan: {slices: false, couple_phases: false}`",
        )
    if _asked(problem):
        raise UsageError(
            f"the paper's form does not know {', '.join(_asked(problem))}",
            mend="leave them out, or use `planner: {use: coral, form: coral}`",
        )
    columns = problem.columns
    lines, twins = _merged(problem)
    builder = ProgramBuilder()
    prices = np.zeros(len(columns))
    for index, site in enumerate(problem.sites):
        here = columns.domain == index
        each = np.zeros(len(problem.node_types))
        for at, kind in enumerate(problem.node_types):
            found = {lot.price_usd_h for lot in site.lots if (lot.gpu, lot.gpus) == (kind.gpu, kind.count)}
            if len(found) > 1:
                raise UsageError(
                    f"the paper's form knows one price of {kind} in {site.domain}, there are {sorted(found)}",
                    mend="leave all but one offer of a size out, or use `planner: {use: coral, form: coral}`",
                )
            each[at] = next(iter(found), 0.0)
        prices[here] = columns.usage[here] @ each
    price = prices[lines]
    unlisted = columns.kept[lines] >= 0
    most = np.where(unlisted, columns.upper[lines], np.inf)
    nu = builder.variables(len(lines), cost=price, upper=most, integer=True)
    penalty = builder.variables(len(lines), cost=1.0)
    for index, site in enumerate(problem.sites):
        for at, kind in enumerate(problem.node_types):
            machines = sum(lot.limit for lot in site.lots if (lot.gpu, lot.gpus) == (kind.gpu, kind.count))
            users = np.flatnonzero((columns.domain[lines] == index) & (columns.usage[lines, at] > 0))
            builder.entries(builder.rows(1, upper=machines), nu[users], columns.usage[lines[users], at])
    for service, need in enumerate(problem.needs):
        users = np.flatnonzero(columns.service[lines] == service)
        row = builder.rows(1, lower=need.demand)
        builder.entries(row, nu[users], columns.throughput[lines[users]])
    share = np.array(
        [initialization_share(problem.view.models[n.model], problem.view) for n in problem.needs]
    )
    charge = price * share[columns.service[lines]] if len(lines) else price
    running = np.where(twins >= 0, columns.upper[np.maximum(twins, 0)], 0.0)
    rows = builder.rows(len(lines), lower=-running * charge)
    builder.entries(rows, penalty, 1.0)
    builder.entries(rows, nu, -charge)
    return PaperForm(program=builder.build(), lines=lines, kept=twins)


def _asked(problem: Problem) -> list[str]:
    """Options that are used and that the paper's form cannot say."""
    view = problem.view
    asked = {
        "a budget": view.options.budget_usd_h is not None,
        "markets apart": markets_apart(view),
        "caps of a model": any(m.max_gpus is not None or m.max_cost_usd_h is not None for m in view.models),
        "survival of losses": any(promised(problem, model) for model in range(len(view.models))),
        "a choice of phases": any(len(m.phases) > 2 for m in view.models),
    }
    return [name for name, used in asked.items() if used]


def paper_allocation(problem: Problem, form: PaperForm, x: Floats) -> Allocation:
    """ν back to kept and new, and the machines that its nodes are."""
    columns = problem.columns
    nu = np.round(x[: len(form.lines)]).astype(np.int64)
    counts: Ints = np.zeros(len(columns), dtype=np.int64)
    for line, twin, count in zip(form.lines, form.kept, nu, strict=True):
        stays = min(int(count), int(columns.upper[twin])) if twin >= 0 else 0
        if twin >= 0:
            counts[twin] = stays
        if twin != line:
            counts[line] = count - stays
    machines = []
    for index, site in enumerate(problem.sites):
        nodes = counts[columns.domain == index] @ columns.usage[columns.domain == index]
        need = {(k.gpu, k.count): int(n) for k, n in zip(problem.node_types, nodes, strict=True)}
        row = []
        for lot in (*site.lots, *site.shaped):
            taken = min(lot.limit, need.get((lot.gpu, lot.gpus), 0))
            need[lot.gpu, lot.gpus] = need.get((lot.gpu, lot.gpus), 0) - taken
            row.append(taken)
        machines.append(tuple(row))
    return Allocation(counts=counts, machines=tuple(machines))


def _merged(problem: Problem) -> tuple[Ints, Ints]:
    """One ν per (template, domain): new columns with their kept twin; a kept one alone is its own."""
    columns = problem.columns
    twin_of: dict[int, int] = {}
    alone = []
    for kept in np.flatnonzero(columns.kept >= 0):
        alike = np.flatnonzero(
            (columns.kept < 0)
            & (columns.service == columns.service[kept])
            & (columns.domain == columns.domain[kept])
            & (columns.throughput == columns.throughput[kept])
            & (columns.usage == columns.usage[kept]).all(axis=1)
        )
        if alike.size and int(alike[0]) not in twin_of:
            twin_of[int(alike[0])] = int(kept)
        else:
            alone.append(int(kept))
    new = np.flatnonzero(columns.kept < 0)
    twins = np.array([twin_of.get(int(line), -1) for line in new], dtype=np.int64)
    return np.r_[new, np.array(alone, dtype=np.int64)], np.r_[twins, np.array(alone, dtype=np.int64)]
