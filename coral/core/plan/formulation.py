"""The allocation as a mixed-integer linear program (MATH §3; the paper's §4.3 with its switches).

==============  ====================================================================================
ν_τr            instances of template τ in domain r: `new` columns, and `kept` ones with ν ≤ ν′ (b)
N_c             machines of lot c: one type, market and price in one domain, held or obtainable
U_k(τ)          nodes of type k in τ                       T(τ)   throughput of τ
p_c             price of a machine, USD/h                  K      initialization / amortization span
κ_k             k × the GPU's mean price in the domain     u      target utilization
D_m, n          requests/s and tokens per request          d      n·D/u, what a service needs
s_m             served fraction of model m, 1 where demand is hard
f_mr            x_mr / D_m: share of model m's demand that domain r serves (coupled phases)
h               how much of a promise is kept, 1 where demand is hard
==============  ====================================================================================

minimise   Σ p_c N_c  +  Σ_{c new} K p_c N_c  +  Σ_{ν new} K Σ_k U_k κ_k ν      slices
           Σ p_c N_c  +  Σ_{ν new} K Σ_k U_k p_k ν                              whole machines: the paper's I

hosting    Σ_τ weights·U(τ) ν  ≤  capacity·N              per domain and node size (see `hosting`)
kept       the same over kept ν and held N: what is kept stays on what is held
demand     Σ_τ min(T/d, 1) ν  ≥  s_m                      per (model, phase); requests/s where mixed
           Σ_τ min(T/d, 1) ν  ≥  f_mr,  Σ_r f_mr ≥ s_m    per domain, where the phases are coupled (`serving`)
promises   what is served when a zone, spot machines or a machine are lost (`survival`, `losses`)
limits     caps of a model, budget of the whole (`limits`)
bounds     N_c ≤ held or obtainable

With slices a held machine h that running nodes sit on has variables of its own, since nodes stay where
they are: N_h ∈ {0, 1} and, per size s, u_sh blocks of s GPUs for others::

    s·u_sh + Σ_{kept on h} gpus·ν  ≤  G_h N_h

which is exact, as any s free GPUs of a machine can form a node. It is released only when it is empty.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.draft import Draft, RowGroup
from coral.core.plan.limits import limit
from coral.core.plan.losses import Endurance, Endured, MachineKind
from coral.core.plan.machines import MachineVariable, host
from coral.core.plan.problem import Problem
from coral.core.plan.serving import Cell, parts, serve
from coral.core.plan.survival import Promise, Scenario, promised, survive
from coral.hookspecs.planner import ProgramBuilder
from coral.types.program import Floats, Ints


class Formulation(Struct, frozen=True, kw_only=True, eq=False):
    """The builder, ready to build or to be given more rows, and where everything lies in x.

    `nu` (n,): the problem's columns. `fraction` (models,): s_m, -1 for a model without demand.
    `rows`: what the rows are for, in their order. `promises`: their h are to be made large where demand is
    soft. `settled` works out everything that is neither ν nor N.
    """

    problem: Problem
    builder: ProgramBuilder
    nu: Ints
    machines: tuple[MachineVariable, ...]
    fraction: Ints
    rows: tuple[RowGroup, ...]
    cells: tuple[Cell, ...]
    endured: tuple[Endured, ...]
    scenarios: tuple[Scenario, ...]
    promises: tuple[Promise, ...]

    def settled(self, x: Floats) -> Floats:
        """A copy of x with all that follows from its ν and N as large as they make it: the parts of demands,
        served fractions, what survives which loss, and promises."""
        out = np.array(x, dtype=np.float64)
        counts = out[self.nu]
        served = {int(column) for column in self.fraction if column >= 0}
        wholes = served | {promise.column for promise in self.promises}
        out[list(wholes)] = 1.0
        for cell in self.cells:
            able = cell.able(self.problem, counts)
            out[cell.column] = min(out[cell.column], able) if cell.column in wholes else able
        for model, column in enumerate(self.fraction):
            own = [c.column for c in self.cells if c.model == model and c.base]
            if column >= 0 and int(column) not in own:
                out[column] = min(1.0, float(out[own].sum()))
        present = {kind_of(self.problem, one) for one in self.machines if out[one.column] > 0}
        for one in self.endured:
            out[one.column] = min(rest.settle(counts, one.kind in present, out) for rest in one.rests)
        for scenario in self.scenarios:
            h, share = scenario.promise.column, scenario.promise.share
            out[h] = min(out[h], float(out[list(scenario.columns)].sum()) / share)
        return out


def kind_of(problem: Problem, variable: MachineVariable) -> MachineKind:
    lot = problem.sites[variable.site].lot(variable.lot)
    return MachineKind(site=variable.site, gpu=lot.gpu, gpus=lot.gpus)


def formulate(problem: Problem, *, soft: bool = False, floors: bool = True) -> Formulation:
    """`soft`: the served fractions may be anything from their floors to 1, and promises anything in [0, 1];
    otherwise they are 1. Without `floors`, anything from 0."""
    draft = Draft()
    builder, columns = draft.builder, problem.columns
    nu = builder.variables(len(columns), cost=columns.charge, upper=columns.upper, integer=True)
    machines: list[MachineVariable] = []
    for index in range(len(problem.sites)):
        machines += host(draft, problem, index, nu)
    lots = [(one, problem.sites[one.site].lot(one.lot)) for one in machines]
    kinds: dict[MachineKind, list[tuple[int, int]]] = {}
    for variable, lot in lots:
        kinds.setdefault(kind_of(problem, variable), []).append((variable.column, lot.limit))
    fraction = np.full(len(problem.view.models), -1, dtype=np.int64)
    cells: list[Cell] = []
    endured: list[Endured] = []
    scenarios: list[Scenario] = []
    promises: list[Promise] = []
    endurance: Endurance | None = None
    for model in sorted({need.model for need in problem.needs if need.demand > 0}):
        floor = problem.view.models[model].floor if floors else 0.0
        s = int(builder.variables(1, lower=floor if soft else 1.0, upper=1.0)[0])
        fraction[model] = s
        base = serve(draft, problem, nu, model, parts(problem, model), s)
        cells += base
        for loss, share in promised(problem, model):
            h = int(builder.variables(1, lower=0.0 if soft else 1.0, upper=1.0)[0])
            promise = Promise(model=model, loss=loss, share=share, column=h)
            promises.append(promise)
            if loss == "machine":
                endurance = endurance or Endurance(draft, problem, nu, kinds)
                some, how = endurance.add(promise, base)
                endured += some
            else:
                more, how = survive(draft, problem, nu, promise, base)
                cells += more
            scenarios += how
    limit(draft, problem, nu, [(variable.column, lot.price_usd_h) for variable, lot in lots])
    return Formulation(
        problem=problem,
        builder=builder,
        nu=nu,
        machines=tuple(machines),
        fraction=fraction,
        rows=tuple(draft.groups),
        cells=tuple(cells),
        endured=tuple(endured),
        scenarios=tuple(scenarios),
        promises=tuple(promises),
    )
