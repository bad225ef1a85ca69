"""The `melange` planner: one GPU type per replica, requests assigned to types by their size.

Taken (Mélange, arXiv 2404.14527, §5): the demand is a histogram over request sizes; each bucket is cut into
slices; a slice goes whole to one type of replica and takes load 1/R of it for each request/s, R being the
type's rate in that bucket; an integer program picks the numbers of replicas of least cost::

    min Σ c_j ν_j    Σ_j x_bj = F    Σ_b x_bj (λ_b / F) / R_bj ≤ ν_j    x_bj in {0 … F}, ν_j integer

(x_bj counts the slices of bucket b on type j: the paper has a binary per slice, which only adds symmetry.)
Adapted: buckets are the size classes of the model's demand; all models and phases are decided at once, over
what can be had in each domain (the rows of `formulation`: machines, supply, what runs); a type is a kind of
node, with the throughput of the library's tables unless `rates` gives measured ones. The allocation's own
demand rows stay: they hold for every such plan where rates come from the tables, and keep plans with
measured rates servable by a router that does not look at sizes. Where supply does not suffice Mélange has
no plan; here what there is is shared as the `coral` planner does, by mean sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from coral.core.plan.allocation import Allocation, allocation, steadied, trimmed
from coral.core.plan.answer import plan_of
from coral.core.plan.budget import Budget
from coral.core.plan.certified import certified
from coral.core.plan.check import solve_checked
from coral.core.plan.formulation import Formulation, formulate
from coral.core.plan.planners import coral
from coral.core.plan.planners.buckets import BucketRates, MeasuredRates, Replica, library_rates
from coral.core.plan.planners.options import CoralOptions
from coral.core.plan.planners.permissions import Restricted, one_way
from coral.core.plan.problem import Problem, state
from coral.errors import SolverError
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.plan import Plan
from coral.types.program import Ints

if TYPE_CHECKING:
    from coral.core.plan.planners.melange_options import MelangeOptions

NAME = "melange"


class MelangePlanner:
    """`rates`: None takes them from the options' file, or from the library's tables."""

    def __init__(self, options: MelangeOptions, rates: BucketRates | None = None) -> None:
        self._options = options
        measured = MeasuredRates(options.rates) if options.rates is not None else None
        self._by_means = coral.build(CoralOptions())
        self._rates: BucketRates = rates or measured or library_rates

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """See `coral.hookspecs.planner.Planner`. Raises LibraryError where a model has no templates and
        UsageError where the measured rates do not fit the demand."""
        restricted = Restricted(library, self._options.permissions)
        seen = one_way(restricted.seen(view), ("mixed",))
        # What is never needed at the mean size may be needed for buckets that were measured.
        problem = state(seen, restricted, reduce=self._rates is library_rates)
        try:
            found = self._solve(problem, restricted, solver)
            why = "the buckets cannot all be served within the limits"
        except SolverError as error:
            found, why = None, f"the solver failed: {error.message}"
        if found is None:
            shared = self._by_means.plan(seen, restricted, solver)
            note = f"{why}; what there is is shared by mean sizes"
            found = replace(shared, planner=NAME, notes=(note, *shared.notes))
        return restricted.realized(found)

    def _solve(self, problem: Problem, library: Library, solver: Solver) -> Plan | None:
        budget = Budget.of(problem.view.options)
        formulation = formulate(problem)
        if not self._buckets(problem, formulation):
            return None
        program = formulation.builder.build()
        answer = solve_checked(program, solver, budget)
        if answer.x is None:
            return None
        found = self._verified(problem, allocation(problem, formulation, answer.x))
        certificate = certified(
            problem,
            found,
            answer.bound,
            budget,
            source="the solver's bound, over buckets and types",
            columns=program.columns,
        )
        return plan_of(problem, library, found, planner=NAME, certificate=certificate)

    def _verified(self, problem: Problem, found: Allocation) -> Allocation:
        kept, faults = trimmed(problem, steadied(problem, found))
        if faults:
            raise SolverError("the solver's plan does not hold: " + "; ".join(faults))
        return kept

    def _buckets(self, problem: Problem, formulation: Formulation) -> bool:
        """Add x and its rows; False where some bucket fits no type."""
        builder, factor = formulation.builder, float(self._options.slice_factor)
        for service, need in enumerate(problem.needs):
            if need.demand <= 0:
                continue
            model = problem.view.models[need.model]
            wanted = model.demand.requests_per_s / problem.view.options.target_utilization
            flows = [wanted * one.share / factor for one in model.demand.classes]
            whole = [int(builder.rows(1, lower=factor, upper=factor)[0]) for _ in flows]
            served = [flow <= 0 for flow in flows]
            for lines, replica in _kinds(problem, service):
                rates = self._rates(model, need.phase, replica)
                taken = builder.rows(1, upper=0.0)
                builder.entries(taken, formulation.nu[lines], -1.0)
                for bucket, flow in enumerate(flows):
                    rate = rates[bucket] if rates is not None else 0.0
                    x = builder.variables(1, upper=factor if rate > 0 else 0.0, integer=True)
                    builder.entries([whole[bucket]], x, 1.0)
                    builder.entries(taken, x, flow / rate if rate > 0 else 0.0)
                    served[bucket] |= rate > 0
                if rates is None or not any(rates):
                    builder.entries(builder.rows(1, upper=0.0), formulation.nu[lines], 1.0)
            if not all(served):
                return False
        return True


def _kinds(problem: Problem, service: int) -> list[tuple[Ints, Replica]]:
    """Columns of a service, new and kept in any domain, by what a replica is."""
    columns = problem.columns
    groups: dict[tuple[bytes, float], list[int]] = {}
    for line in np.flatnonzero(columns.service == service):
        key = (columns.usage[line].tobytes(), float(columns.throughput[line]))
        groups.setdefault(key, []).append(int(line))
    return [
        (
            np.array(lines, dtype=np.int64),
            Replica(
                nodes={
                    problem.node_types[int(at)]: int(columns.usage[lines[0], at])
                    for at in np.flatnonzero(columns.usage[lines[0]])
                },
                throughput=throughput,
            ),
        )
        for (_, throughput), lines in sorted(groups.items())
    ]


def build(options: MelangeOptions) -> MelangePlanner:
    return MelangePlanner(options)
