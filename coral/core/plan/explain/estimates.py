"""What one more machine or request/s would be worth, estimated by the linear relaxation.

Of min c·x over the relaxed program with row prices y, the reduced cost of N_c at its limit is what the
optimum gains as the limit moves by one: one more machine of the offer. For one more request/s of a model,
the entries T/d of its rows shrink as d grows, but for those that are tightened to 1 (envelope theorem)::

    dz/dD  =  Σ_i y_i Σ_{j: T_j < d} (a_ij / D) ν_j          i: rows that the model's services must meet

An integer plan moves in steps: these are estimates, good to choose what to solve again, and nothing else.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan import bound
from coral.core.plan.formulation import Formulation, formulate
from coral.core.plan.problem import state
from coral.core.plan.supply import Lot
from coral.errors import SolverError
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.hardware import Offer
from coral.types.program import Floats, Program


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
    prices = bound.corrected(program, duals)
    reduced = bound.reduced_costs(program, prices)
    worth: dict[tuple[object, ...], float] = {}
    for variable in formulation.machines:
        lot = problem.sites[variable.site].lot(variable.lot)
        if not lot.held:
            kind = _sold(lot)
            worth[kind] = max(worth.get(kind, 0.0), -float(reduced[variable.column]))
    return Estimates(
        offers={one.key: worth[_offered(one)] for one in view.offers if _offered(one) in worth},
        demand={} if solution.x is None else _demand(formulation, program, prices, solution.x),
    )


def _demand(formulation: Formulation, program: Program, prices: Floats, x: Floats) -> dict[str, float]:
    served = np.zeros(program.columns, dtype=np.bool_)
    served[formulation.nu] = True
    column = np.repeat(np.arange(program.columns), np.diff(program.indptr))
    grows = served[column] & (program.data < 1.0)
    spent = np.zeros(program.rows)
    np.add.at(spent, program.indices[grows], (program.data * x[column])[grows])
    found = {}
    for model, spec in enumerate(formulation.problem.view.models):
        rows = [group for group in formulation.rows if group.model == model and group.service >= 0]
        if spec.demand.requests_per_s > 0 and rows:
            worth = sum(float(prices[g.start : g.stop] @ spent[g.start : g.stop]) for g in rows)
            found[spec.name] = max(0.0, worth) / spec.demand.requests_per_s
    return found


def _sold(lot: Lot) -> tuple[object, ...]:
    return (lot.machine_type, lot.domain, lot.market, lot.price_usd_h)


def _offered(offer: Offer) -> tuple[object, ...]:
    return (offer.machine_type.name, offer.domain, offer.market, offer.price_usd_h)
