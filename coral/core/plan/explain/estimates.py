"""What one more machine or request/s would be worth, estimated by the linear relaxation.

Of min c·x over the relaxed program, the reduced cost of a variable at a bound is what the optimum gains or
loses as the bound moves by one. For N_c at its limit that is one more machine of the offer; for the served
fraction s_m, fixed at 1, divided by D_m it is one more request/s. An integer plan moves in steps, and the
tightened entries of a demand row move with the demand: these are estimates, good to choose what to
solve again, and nothing else.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan import bound
from coral.core.plan.formulation import formulate
from coral.core.plan.problem import Problem, state
from coral.core.plan.supply import Lot
from coral.errors import SolverError
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.hardware import Offer
from coral.types.program import Floats


class Estimates(Struct, frozen=True, kw_only=True):
    """USD/h: what one more machine saves, by the offer's key, and what one more request/s costs, by model."""

    offers: dict[str, float]
    demand: dict[str, float]


NONE = Estimates(offers={}, demand={})


def estimates(view: View, library: Library, solver: Solver, limit_s: float | None) -> Estimates:
    """`NONE` where the relaxation cannot be solved in time, has no solution, or the solver has no duals.

    Sold-out offers have no variable; they are estimated as if one of each could be had.
    """
    found = _relaxed(view, library, solver, limit_s)
    sold_out = [one for one in view.offers if one.obtainable == 0]
    if found is NONE or not sold_out:
        return found
    offers = tuple(replace(one, obtainable=max(1, one.obtainable)) for one in view.offers)
    again = _relaxed(replace(view, offers=offers), library, solver, limit_s)
    more = {one.key: again.offers[one.key] for one in sold_out if one.key in again.offers}
    return Estimates(offers={**found.offers, **more}, demand=found.demand)


def _relaxed(view: View, library: Library, solver: Solver, limit_s: float | None) -> Estimates:
    if not solver.features.duals:
        return NONE
    problem = state(view, library)
    formulation = formulate(problem)
    program = formulation.builder.build()
    upper = program.upper.copy()
    upper[formulation.nu[problem.columns.kept < 0]] = np.inf  # what the rows imply must not bear their price
    relaxed = replace(program, upper=upper, integer=np.zeros(program.columns, dtype=np.bool_))
    try:
        solution = solver.solve(relaxed, work_limit=None, time_limit_s=limit_s, gap=view.options.gap)
    except SolverError:
        return NONE
    duals = solution.row_duals
    if solution.status != "optimal" or duals is None or not np.isfinite(duals).all():
        return NONE
    reduced = bound.reduced_costs(program, bound.corrected(program, duals))
    worth: dict[tuple[object, ...], float] = {}
    for variable in formulation.machines:
        site = problem.sites[variable.site]
        if variable.lot < len(site.lots) and not site.lots[variable.lot].held:
            kind = _sold(site.lots[variable.lot])
            worth[kind] = max(worth.get(kind, 0.0), -float(reduced[variable.column]))
    return Estimates(
        offers={one.key: worth[_offered(one)] for one in view.offers if _offered(one) in worth},
        demand=_demand(problem, reduced, formulation.fraction.tolist()),
    )


def _demand(problem: Problem, reduced: Floats, fraction: list[int]) -> dict[str, float]:
    return {
        spec.name: max(0.0, float(reduced[column])) / spec.demand.requests_per_s
        for spec, column in zip(problem.view.models, fraction, strict=True)
        if column >= 0 and spec.demand.requests_per_s > 0
    }


def _sold(lot: Lot) -> tuple[object, ...]:
    return (lot.machine_type, lot.domain, lot.market, lot.price_usd_h)


def _offered(offer: Offer) -> tuple[object, ...]:
    return (offer.machine_type.name, offer.domain, offer.market, offer.price_usd_h)
