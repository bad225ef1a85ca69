"""The `cauchy` planner: prefill and decode each on nodes of one type, paired to GPU combos.

Taken (Cauchy, SoCC 2025, "A Cost-Efficient LLM Serving System through Adaptive Heterogeneous
Deployment"; its abstract is what is public): prefill and decode may use different GPUs; the unit of
deployment is a *GPU combo* of both, ranked by cost efficiency (tokens per USD); the top combos are candidates
and a set of them is deployed that meets the goodput asked for. Adapted: instances are the templates of the
library, so placement and tables are the `coral` planner's; combos of one domain, since KV goes from one
phase to the other, unless `couple_phases` is off; several models take turns (`order`); what runs is kept
first; surplus instances of the last combo are taken back (`trim_last`). `choose: ilp` is the cheapest set of
combos for all models at once. Its scheduling of requests within combos has no counterpart here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from coral.core.plan.allocation import Allocation, allocation, steadied, trimmed
from coral.core.plan.answer import plan_of, services
from coral.core.plan.budget import Budget
from coral.core.plan.certified import certified
from coral.core.plan.check import Checked, solve_checked
from coral.core.plan.formulation import formulate
from coral.core.plan.missing import shortages
from coral.core.plan.planners.bundles import Bundle, BundleGreedy, singles
from coral.core.plan.planners.combos import combos
from coral.core.plan.planners.counted import counted_plan
from coral.core.plan.planners.permissions import Restricted, one_way
from coral.core.plan.planners.stock import Stock
from coral.core.plan.problem import Problem, state
from coral.errors import SolverError
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.plan import Plan

if TYPE_CHECKING:
    from coral.core.plan.planners.cauchy_options import CauchyOptions

NAME = "cauchy"


class CauchyPlanner:
    def __init__(self, options: CauchyOptions) -> None:
        self._options = options

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """See `coral.hookspecs.planner.Planner`. Raises LibraryError where a model has no templates."""
        restricted = Restricted(library, self._options.permissions)
        problem = state(one_way(restricted.seen(view), ("prefill", "decode")), restricted)
        stock = Stock(problem)
        bundles = self._bundles(problem, stock)
        greedy = BundleGreedy(
            problem, stock, bundles, order=self._options.order, trim_last=self._options.trim_last
        )
        note = "GPU combos were chosen greedily: not proven optimal"
        counted = counted_plan(problem, restricted, greedy.run(), planner=NAME, note=note)
        if self._options.choose == "ilp":
            counted = self._better(problem, restricted, bundles, solver, counted)
        return restricted.realized(counted)

    def _better(
        self, problem: Problem, library: Library, bundles: list[Bundle], solver: Solver, counted: Plan
    ) -> Plan:
        """The cheapest set of combos, or the counted plan where there is none or it costs no less: that takes
        back single instances, and the solver's time is limited."""
        try:
            best = self._best(problem, library, bundles, solver)
        except SolverError as error:
            return replace(counted, notes=(f"the solver failed: {error.message}", *counted.notes))
        if best is None:
            return replace(counted, notes=("no set of combos that can be had serves all", *counted.notes))
        if counted.satisfied and _cost(counted) < _cost(best):
            note = f"the solver's set of combos costs no less: {_cost(best):.6g} USD/h"
            return replace(counted, notes=(note, *counted.notes))
        return best

    def _bundles(self, problem: Problem, stock: Stock) -> list[Bundle]:
        """Combos, and single instances of models that are served `mixed`."""
        prices = stock.prices()
        found = combos(problem, prices, most=self._options.most_replicas, candidates=self._options.candidates)
        paired = {one.model for one in found}
        return found + [one for one in singles(problem, prices) if one.model not in paired]

    def _best(self, problem: Problem, library: Library, bundles: list[Bundle], solver: Solver) -> Plan | None:
        budget = Budget.of(problem.view.options)
        solved = best_bundles(problem, bundles, solver, budget)
        if solved is None:
            return None
        answer, found = solved
        certificate = certified(
            problem,
            found,
            answer.bound,
            budget,
            source="the solver's bound, over GPU combos",
            columns=len(bundles),
        )
        notes = shortages(problem, services(problem, found))
        return plan_of(problem, library, found, planner=NAME, certificate=certificate, notes=notes)


def best_bundles(
    problem: Problem, bundles: list[Bundle], solver: Solver, budget: Budget
) -> tuple[Checked, Allocation] | None:
    """The cheapest numbers m_b of bundles that serve every model, or None where there are none.

    Adds to the allocation's program (`formulation`)::

        Σ_b rate_b m_b ≥ 1             per model, or per (model, phase) where bundles are single instances
        Σ ν of a template and domain ≥ Σ_b n_b m_b      kept and new alike

    Raises SolverError where the solver fails.
    """
    formulation = formulate(problem)
    builder, columns = formulation.builder, problem.columns
    most = [int(np.ceil(1.0 / one.rate - 1e-9)) for one in bundles]
    m = builder.variables(len(bundles), upper=np.array(most, dtype=np.float64), integer=True)
    served: dict[tuple[int, ...], int] = {}
    inside: dict[int, int] = {}
    for column, one in zip(m, bundles, strict=True):
        if one.services not in served:
            served[one.services] = int(builder.rows(1, lower=1.0)[0])
        builder.entries([served[one.services]], [column], min(one.rate, 1.0))
        for line, count in one.lines.items():
            if line not in inside:
                inside[line] = int(builder.rows(1, lower=0.0)[0])
                builder.entries([inside[line]], formulation.nu[_alike(problem, line)], 1.0)
            builder.entries([inside[line]], [column], -float(count))
    wanted = {need.model for need in problem.needs if need.demand > 0}
    if wanted - {one.model for one in bundles}:
        return None
    idle = np.setdiff1d(np.arange(len(columns)), [j for line in inside for j in _alike(problem, line)])
    if idle.size:
        builder.entries(builder.rows(1, upper=0.0), formulation.nu[idle], 1.0)
    program = builder.build()
    answer = solve_checked(program, solver, budget)
    if answer.x is None:
        return None
    found, faults = trimmed(problem, steadied(problem, allocation(problem, formulation, answer.x)))
    if faults:
        raise SolverError("the solver's plan does not hold: " + "; ".join(faults))
    return answer, found


def _cost(plan: Plan) -> float:
    return plan.price_usd_h + plan.initialization_usd_h


def _alike(problem: Problem, line: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A new column and the kept ones of the same template in the same domain."""
    columns = problem.columns
    return np.flatnonzero(
        (columns.service == columns.service[line])
        & (columns.domain == columns.domain[line])
        & (columns.throughput == columns.throughput[line])
        & (columns.usage == columns.usage[line]).all(axis=1)
    ).astype(np.int64)


def build(options: CauchyOptions) -> CauchyPlanner:
    return CauchyPlanner(options)
