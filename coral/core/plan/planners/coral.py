"""The `coral` planner: exact allocation with a certificate, over what is held and what can be had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.allocation import Allocation, allocation, steadied, trimmed
from coral.core.plan.answer import plan_of, services
from coral.core.plan.budget import Budget, Clock
from coral.core.plan.certified import certified
from coral.core.plan.check import Checked, solve_checked
from coral.core.plan.exact.memory import Memory
from coral.core.plan.formulation import formulate
from coral.core.plan.greedy import greedy, greedy_plan
from coral.core.plan.headroom import with_headroom
from coral.core.plan.limits import without_limits
from coral.core.plan.missing import beyond, shortages
from coral.core.plan.paper import paper_allocation, paper_form
from coral.core.plan.problem import Problem, state
from coral.core.plan.scarcity import share_scarcity
from coral.core.plan.sifted import Sifted, Whose, better
from coral.core.plan.sifting import minimise
from coral.core.plan.start import start_from_running
from coral.core.plan.stay import stay
from coral.core.solve.clock import seconds
from coral.errors import SolverError
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.plan import Plan
from coral.types.program import Floats, Program

if TYPE_CHECKING:
    from coral.core.plan.planners.options import CoralOptions

NAME = "coral"
HARD_SHARE = 0.6
"""Of the time limit, for demand taken as hard; the rest is for sharing what is scarce."""
SOURCES: dict[Whose, str] = {
    "ours": "coral: row prices and whole covers",
    "both": "coral: row prices and whole covers, and the solver's bound of what they leave",
    "solver": "the solver's bound",
}
ENOUGH = 10_000
"""Machines of every offer, where the question is what it would take."""


class _Found(Struct, frozen=True, kw_only=True, eq=False):
    """A verified allocation and what is known of its optimality."""

    allocation: Allocation
    bound: float
    columns: int
    source: str
    notes: tuple[str, ...] = ()


class CoralPlanner:
    def __init__(self, options: CoralOptions, clock: Clock | None = None) -> None:
        """With a `clock` the plan's time limit counts everything, without one what solvers report."""
        self._options = options
        self._clock = clock
        self._memory = Memory()

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """See `coral.hookspecs.planner.Planner`. Where the solver fails: what runs stays, and where
        nothing runs templates are chosen greedily; both say so in the plan's notes."""
        paper = self._options.form == "paper"
        budget = Budget.of(view.options, self._clock)
        problem = state(view, library, reduce=self._options.reductions and not paper)
        try:
            found = self._solve(problem, solver, budget)
        except SolverError as error:
            return self._fallback(problem, library, f"the solver failed: {error.message}")
        if found is None:
            return self._fallback(problem, library, "the solver found no plan within its limits")
        served = services(problem, found.allocation)
        notes = [*found.notes, *shortages(problem, served)]
        if not all(one.met for one in served):
            notes += self._beyond(problem, library, solver, budget)
        certificate = certified(
            problem, found.allocation, found.bound, budget, source=found.source, columns=found.columns
        )
        return plan_of(problem, library, found.allocation, planner=NAME, certificate=certificate, notes=notes)

    def _solve(self, problem: Problem, solver: Solver, budget: Budget) -> _Found | None:
        if self._options.form == "paper":
            return self._as_paper(problem, solver, budget)
        formulation = formulate(problem)
        program = formulation.builder.build()
        start = start_from_running(problem, formulation, program)
        sifted = self._minimise(program, solver, budget.part(HARD_SHARE), start)
        failures = [sifted.answer.failure]
        answer, x = sifted.answer, sifted.answer.x
        try:
            if answer.status == "feasible" and not answer.failure and not budget.exhausted:
                again = self._minimise(program, solver, budget, x)
                failures.append(again.answer.failure)
                sifted = better(sifted, again)
                answer, x = sifted.answer, sifted.answer.x
            if x is not None and self._options.headroom:
                more = with_headroom(problem, formulation, answer, solver, budget)
                x = x if more is None else more
        except SolverError as error:
            failures.append(error.message)
        if x is None:
            return self._share(problem, solver, budget)
        return _Found(
            allocation=self._verified(problem, allocation(problem, formulation, x)),
            bound=answer.bound,
            columns=sifted.columns,
            source=SOURCES[sifted.whose],
            notes=(*_resolved(answer), *_failed(failures)),
        )

    def _minimise(self, program: Program, solver: Solver, budget: Budget, start: Floats | None) -> Sifted:
        return minimise(
            program, solver, budget, start, sift_above=self._options.sift_above, memory=self._memory
        )

    def _share(self, problem: Problem, solver: Solver, budget: Budget) -> _Found | None:
        scarce = share_scarcity(problem, solver, budget, sift_above=self._options.sift_above)
        if scarce.answer.x is None:
            return None
        found = self._verified(problem, allocation(problem, scarce.formulation, scarce.answer.x))
        notes = [*_resolved(scarce.answer), *_failed(scarce.failures)]
        if not scarce.proven:
            notes.append("the limits were met before the served fractions were proved to be the best")
            counted = self._counted(problem, found)
            if counted is not None:
                notes.append("templates were chosen greedily: that serves more than the solver found in time")
                return _Found(
                    allocation=counted,
                    bound=0.0,
                    columns=len(problem.columns),
                    source="none: prices are not negative",
                    notes=tuple(notes),
                )
        return _Found(
            allocation=found,
            bound=scarce.answer.bound,
            columns=len(problem.columns),
            source="the solver's bound on the cost of serving these fractions",
            notes=tuple(notes),
        )

    def _counted(self, problem: Problem, found: Allocation) -> Allocation | None:
        """The greedy allocation where it shares better than `found`; none where instances run, since it
        knows nothing of keeping them."""
        if problem.kept:
            return None
        counted, faults = trimmed(problem, greedy(problem))
        better_shared = _fractions(problem, counted) > _fractions(problem, found)
        return counted if better_shared and not faults else None

    def _as_paper(self, problem: Problem, solver: Solver, budget: Budget) -> _Found | None:
        form = paper_form(problem)
        answer = solve_checked(form.program, solver, budget)
        if answer.x is None:
            return self._share(problem, solver, budget)
        return _Found(
            allocation=self._verified(problem, paper_allocation(problem, form, answer.x)),
            bound=answer.bound,
            columns=form.program.columns,
            source="the solver's bound (paper's form)",
            notes=_resolved(answer),
        )

    def _verified(self, problem: Problem, found: Allocation) -> Allocation:
        """Packed machine by machine, empty ones dropped. Raises SolverError where it does not hold."""
        kept, faults = trimmed(problem, steadied(problem, found))
        if faults:
            raise SolverError("the solver's plan does not hold: " + "; ".join(faults))
        return kept

    def _fallback(self, problem: Problem, library: Library, why: str) -> Plan:
        if len(problem.kept):
            return stay(problem, library, planner=NAME, notes=(f"{why}; what runs stays as it is",))
        plan = greedy_plan(problem.view, library)
        return replace(plan, notes=(why, *plan.notes))

    def _beyond(self, problem: Problem, library: Library, solver: Solver, budget: Budget) -> list[str]:
        """Solve once more as if every offer could be had in any number, without caps and budget; a note if
        that serves all."""
        if budget.exhausted:
            return []
        view = problem.view
        offers = tuple(replace(offer, obtainable=ENOUGH) for offer in view.offers)
        ample = state(without_limits(replace(view, offers=offers)), library)
        formulation = formulate(ample)
        try:
            program = formulation.builder.build()
            answer = self._minimise(program, solver, budget, None).answer
            if answer.x is None:
                return []
            found = self._verified(ample, allocation(ample, formulation, answer.x))
        except SolverError as error:
            return [f"what it would take could not be found out: {error.message}"]
        full = plan_of(ample, library, found, planner=NAME, certificate=None)
        line = beyond(problem, full)
        return [line] if line else []


def _fractions(problem: Problem, found: Allocation) -> list[float]:
    """Served fractions by priority, the least first: the greater list shares better (leximin)."""
    priority = {model.name: model.priority for model in problem.view.models}
    fractions = [one.fraction / priority[one.model] for one in services(problem, found)]
    return sorted(float(f"{fraction:.6g}") for fraction in fractions)


def _failed(failures: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"the solver failed in the end: {one}" for one in dict.fromkeys(failures) if one)


def _resolved(answer: Checked) -> tuple[str, ...]:
    return ("the solver's first answer did not hold and was solved again cold",) * answer.resolved_cold


def build(options: CoralOptions) -> CoralPlanner:
    return CoralPlanner(options, seconds)
