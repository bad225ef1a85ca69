"""A plan explained: why each part is there, which limits bind, and what changes of them are worth.

Plain data, the layout that `coral plan --explain --json` prints as `explanation`::

    {instances:   [{model, phase, unit, count, price: {nodes, domain, throughput, usd_h, per_unit},
                    next_best: as price, or null}],
     machines:    [{machine_type, domain, market, count, usd_h, gpus, gpus_used, serves: [text]}],
     constraints: [{kind, about, used, limit, unit, binds}],
     answers:     [{kind, about, what_if, estimate_usd_h, instead: [{nodes, domain, count}],
                    figure: {how, usd_h, least_usd_h, most_usd_h, told_apart, gap,
                             served: [{model, phase, before, after}], unkept: [text]} or null}],
     estimated:   {offers: {key: USD/h}, demand: {model: USD/h}},
     solves, seconds, limit_s}

`answers` are of the kinds of `questions`; `figure` is null where the time did not suffice, and
`estimate_usd_h`, of the linear relaxation, is all there is. `instead` is what takes the place of a
forbidden template. `estimated` has every offer and model, also those that were not solved again.
"""

from __future__ import annotations

from msgspec import Struct

from coral.core.plan.explain.constraints import Constraint, constraints
from coral.core.plan.explain.estimates import NONE, Estimates, estimates
from coral.core.plan.explain.figure import Figure, difference
from coral.core.plan.explain.questions import Kind, Question, Rebuilt, questions
from coral.core.plan.explain.reasons import (
    InstanceReason,
    MachineReason,
    instance_reasons,
    machine_reasons,
)
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.wording import nodes_of
from coral.core.plan.problem import state
from coral.errors import CoralError
from coral.hookspecs.planner import Library, View
from coral.types.plan import Plan

FEW = 3
ESTIMATING = 0.25
"""Of the time limit, at most, for the relaxation that chooses what is solved again."""
FAIR = 2.0
"""How many times its even share of the time that is left one question may take: the first have more."""


class Instead(Struct, frozen=True, kw_only=True):
    nodes: str
    domain: str
    count: int


class Answer(Struct, frozen=True, kw_only=True):
    kind: Kind
    about: str
    what_if: str | None
    estimate_usd_h: float | None
    figure: Figure | None
    instead: tuple[Instead, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True):
    instances: tuple[InstanceReason, ...]
    machines: tuple[MachineReason, ...]
    constraints: tuple[Constraint, ...]
    answers: tuple[Answer, ...]
    estimated: Estimates
    solves: int
    seconds: float
    limit_s: float | None


def explain(
    view: View,
    library: Library,
    plan: Plan,
    solves: Solves,
    *,
    few: int = FEW,
    rebuilt: Rebuilt | None = None,
) -> Explanation:
    """Explain a plan of this view. Solves again as long as `solves` has time; `rebuilt`, if given, makes the
    templates for looser SLOs. The plan stays as it is, also where a re-solve finds a better one."""
    part = None if solves.left_s is None else solves.left_s * ESTIMATING
    guess = estimates(view, library, solves.solver, part) if plan.satisfied else NONE
    asked = questions(view, library, plan, guess, few=few, rebuilt=rebuilt)
    answers = tuple(
        _answered(one, plan, solves, min(1.0, FAIR / (len(asked) - at))) for at, one in enumerate(asked)
    )
    problem = state(view, library)
    return Explanation(
        instances=instance_reasons(plan, problem),
        machines=machine_reasons(plan, view),
        constraints=constraints(view, plan),
        answers=answers,
        estimated=guess,
        solves=solves.count,
        seconds=solves.seconds,
        limit_s=solves.limit_s,
    )


def _answered(question: Question, plan: Plan, solves: Solves, share: float) -> Answer:
    after = _solved(question, solves, share)
    if after is not None and plan.certificate is not None and after.certificate is None:
        after = None  # what a planner falls back to says nothing of the change
    instead: tuple[Instead, ...] = ()
    if after is not None and question.service is not None:
        instead = _instead(plan, after, question.service)
    return Answer(
        kind=question.kind,
        about=question.about,
        what_if=question.what_if,
        estimate_usd_h=question.estimate_usd_h,
        figure=None if after is None else difference(plan, after, question.direction),
        instead=instead,
    )


def _solved(question: Question, solves: Solves, share: float) -> Plan | None:
    if solves.over:
        return None
    try:
        library = question.library()
    except CoralError:  # templates that cannot be built: no answer
        return None
    return solves.plan(question.view, library, share=share)


def _instead(before: Plan, after: Plan, service: tuple[str, str]) -> tuple[Instead, ...]:
    """Which instances of the service `after` has more of."""
    had, has = _counts(before, service), _counts(after, service)
    return tuple(
        Instead(nodes=nodes, domain=domain, count=count - had.get((nodes, domain), 0))
        for (nodes, domain), count in has.items()
        if count > had.get((nodes, domain), 0)
    )


def _counts(plan: Plan, service: tuple[str, str]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for one in plan.instances:
        if (one.template.model, one.template.phase) == service:
            key = (nodes_of(one.template), str(one.domain))
            counts[key] = counts.get(key, 0) + one.count
    return counts
