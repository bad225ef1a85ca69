"""Demand that cannot all be served: fractions as equal as can be, then cost.

A uniform scale-down would let one model that nothing can host zero everybody. Instead the ordered vector
of v_m = s_m / w_m (w: priority, scaled so that the least is 1) is made lexicographically greatest: first
its smallest entry, then the second smallest, and so on (leximin); its last step is the sum. With integers
the entries that bind cannot simply be fixed, so step k maximises the sum of the k smallest (Ogryczak)::

    θ_k = max  k·t_k − Σ_m d_km      d_km ≥ t_k − v_m,  d_km ≥ 0,      keeping θ_1 … θ_{k-1}

A model that cannot be hosted takes the smallest entry, 0, and no more. Floors of s_m hold where they can
hold together; else none of them binds. With every θ kept the promises (what survives a loss) are kept as
far as can be, by their sum, and at the end the cost is minimised with all of that kept.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.attainable import Attainable, attainable
from coral.core.plan.budget import Budget
from coral.core.plan.check import Checked
from coral.core.plan.formulation import Formulation, formulate
from coral.core.plan.problem import Problem
from coral.core.plan.sifting import minimise
from coral.errors import SolverError
from coral.hookspecs.solver import Solver
from coral.types.program import Floats, Ints, Program

SLACK = 1e-7
"""How much of a step's optimum the later steps may give up: what a solver's tolerance needs."""
SHARE = 0.6
"""Of the budget, for all steps together; the rest is for the cost."""


class Scarce(Struct, frozen=True, kw_only=True, eq=False):
    """`proven`: whether every step was solved to its gap; otherwise fractions may not be the best.
    `failures` of the solver after it had found a solution."""

    formulation: Formulation
    answer: Checked
    proven: bool
    failures: tuple[str, ...] = ()


class _Steps:
    """The soft program, to which each step adds its variables and rows."""

    def __init__(self, can: Attainable, *, floors: bool) -> None:
        problem = can.problem
        self.formulation = formulate(problem, soft=True, floors=floors)
        self.builder = self.formulation.builder
        models = [m for m in range(len(problem.view.models)) if self.formulation.fraction[m] >= 0]
        priorities = np.array([problem.view.models[m].priority for m in models])
        self.fractions: Ints = self.formulation.fraction[models]
        weights = can.weights[models] / priorities
        self.weights: Floats = weights / weights.max()
        """v_m = weights·s_m, in [0, 1]."""

    @property
    def count(self) -> int:
        return len(self.fractions)

    def aim(self, k: int) -> tuple[Program, Ints, Floats]:
        """The program of step k, and θ_k as columns and coefficients."""
        n = self.count
        level = self.builder.variables(1, upper=1.0)
        short = self.builder.variables(n, upper=1.0)
        rows = self.builder.rows(n, lower=0.0)
        self.builder.entries(rows, short, 1.0)
        self.builder.entries(rows, level, -1.0)
        self.builder.entries(rows, self.fractions, self.weights)
        columns = np.r_[level, short]
        theta = np.r_[float(k), np.full(n, -1.0)]
        program = self.builder.build()
        cost = np.zeros(program.columns)
        cost[columns] = -theta
        return replace(program, cost=cost), columns, theta

    def keep(self, columns: Ints, theta: Floats, value: float) -> None:
        row = self.builder.rows(1, lower=value - SLACK)
        self.builder.entries(row, columns, theta)


def share_scarcity(problem: Problem, solver: Solver, budget: Budget, *, sift_above: int) -> Scarce:
    """Leximin, then promises, then least cost. Raises SolverError where not even a first step has an
    answer; where a later one fails, what is known by then stands."""
    can = attainable(problem)
    asked = [model.floor for model in problem.view.models]
    floors = any(floor > 0 for floor in asked) and not (np.array(asked) > can.shares * (1 + SLACK)).any()
    steps = _Steps(can, floors=floors)
    proven = True
    failures: list[str] = []
    x: Floats | None = None

    def solved(program: Program, within: Budget, start: Floats | None) -> Checked:
        try:
            answer = minimise(program, solver, within, start, sift_above=sift_above).answer
        except SolverError as error:
            if x is None:
                raise
            answer = Checked(status="no_solution", failure=error.message)
        if answer.failure:
            failures.append(answer.failure)
        return answer

    for k in range(1, steps.count + 1):
        if budget.exhausted and x is not None:
            proven = False
            break
        program, columns, theta = steps.aim(k)
        start = _extended(x, program, columns, steps, k)
        within = budget.part(SHARE / steps.count)
        answer = solved(program, within, start)
        if answer.status == "infeasible" and floors and k == 1:
            steps = _Steps(can, floors=False)
            program, columns, theta = steps.aim(k)
            answer = solved(program, within, None)
        if answer.x is None:
            proven = False
            break
        proven = proven and answer.status == "optimal"
        x = answer.x
        value = float(theta @ x[columns])
        steps.keep(columns, theta, value)
    promises = np.array([one.column for one in steps.formulation.promises], dtype=np.int64)
    if promises.size and x is not None:
        program = steps.builder.build()
        weights = np.zeros(program.columns)
        weights[promises] = -1.0
        aim = replace(program, cost=weights)
        start = _extended(x, program, None, steps, 0)
        answer = solved(aim, budget.part(SHARE), start)
        proven = proven and answer.status == "optimal"
        x = answer.x if answer.x is not None else x
        steps.keep(promises, np.ones(len(promises)), float(x[promises].sum()))
    program = steps.builder.build()
    start = _extended(x, program, None, steps, 0)
    final = solved(program, budget, start)
    if final.x is None and x is not None:
        cost = float(program.cost[: len(x)] @ x)
        final = Checked(status="feasible", x=x, cost=cost)
    return Scarce(formulation=steps.formulation, answer=final, proven=proven, failures=tuple(failures))


def _extended(
    x: Floats | None, program: Program, columns: Ints | None, steps: _Steps, k: int
) -> Floats | None:
    """The last step's solution with values for the variables this step has added."""
    if x is None:
        return None
    out = np.zeros(program.columns)
    out[: len(x)] = x
    if columns is not None:
        values = np.sort(steps.weights * x[steps.fractions])
        level = values[k - 1]
        out[columns] = np.r_[level, np.maximum(0.0, level - steps.weights * x[steps.fractions])]
    return out
