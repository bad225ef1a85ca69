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
==============  ====================================================================================

minimise   Σ p_c N_c  +  Σ_{c new} K p_c N_c  +  Σ_{ν new} K Σ_k U_k κ_k ν      slices
           Σ p_c N_c  +  Σ_{ν new} K Σ_k U_k p_k ν                              whole machines: the paper's I

hosting    Σ_τ weights·U(τ) ν  ≤  capacity·N              per domain and node size (see `hosting`)
kept       the same over kept ν and held N: what is kept stays on what is held
demand     Σ_τ min(T/d, 1) ν  ≥  s_m                      per (model, phase); requests/s where mixed
           Σ_τ min(T/d, 1) ν  ≥  f_mr,  Σ_r f_mr ≥ s_m    per domain, where the phases are coupled
bounds     N_c ≤ held or obtainable

With slices a held machine h that running nodes sit on has variables of its own, since nodes stay where
they are: N_h ∈ {0, 1} and, per size s, u_sh blocks of s GPUs for others::

    s·u_sh + Σ_{kept on h} gpus·ν  ≤  G_h N_h

which is exact, as any s free GPUs of a machine can form a node. It is released only when it is empty.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.problem import Problem, Site
from coral.core.plan.reductions import tightened
from coral.core.plan.services import coupled
from coral.hookspecs.planner import ProgramBuilder
from coral.types.program import Floats, Ints


class MachineVariable(Struct, frozen=True, kw_only=True):
    """N of lot `lot` of site `site` (its `lots` or, past them, its `shaped`), in one way of use."""

    site: int
    lot: int
    column: int


class Formulation(Struct, frozen=True, kw_only=True, eq=False):
    """The builder, ready to build or to be given more rows, and where everything lies in x.

    `nu` (n,): the problem's columns. `fraction` (models,): s_m, -1 for a model without demand.
    """

    builder: ProgramBuilder
    nu: Ints
    machines: tuple[MachineVariable, ...]
    fraction: Ints
    shares: dict[tuple[int, int], int]
    """Column of f_mr by (model, site), where phases are coupled."""


def formulate(problem: Problem, *, soft: bool = False) -> Formulation:
    """`soft`: the served fractions may be anything in [0, 1]; otherwise they are 1."""
    builder = ProgramBuilder()
    columns = problem.columns
    nu = builder.variables(len(columns), cost=columns.charge, upper=columns.upper, integer=True)
    machines: list[MachineVariable] = []
    for index, site in enumerate(problem.sites):
        _host(builder, problem, index, site, nu, machines)
    fraction = np.full(len(problem.view.models), -1, dtype=np.int64)
    shares: dict[tuple[int, int], int] = {}
    for model in sorted({need.model for need in problem.needs if need.demand > 0}):
        fraction[model : model + 1] = builder.variables(1, lower=0.0 if soft else 1.0, upper=1.0)
        apart = _serve(builder, problem, model, nu, int(fraction[model]))
        shares.update({(model, site): column for site, column in apart.items()})
    return Formulation(builder=builder, nu=nu, machines=tuple(machines), fraction=fraction, shares=shares)


def _host(
    builder: ProgramBuilder,
    problem: Problem,
    index: int,
    site: Site,
    nu: Ints,
    machines: list[MachineVariable],
) -> None:
    """N_c, their limits, the hosting rows, and what keeps kept instances on held machines."""
    hosting, columns = site.hosting, problem.columns
    here = columns.domain == index
    sliced = problem.view.options.slices
    guests = np.flatnonzero(here & (columns.kept < 0)) if sliced else np.flatnonzero(here)
    rows = builder.rows(len(hosting.weights), upper=0.0)
    _spread(builder, rows, nu[guests], columns.usage[guests] @ hosting.weights.T)
    per_lot: dict[int, list[int]] = {}
    variables: list[int] = []
    for use in hosting.uses:
        if use.lot >= len(site.lots):
            variables.append(-1)
            continue
        lot = site.lots[use.lot]
        share = 0.0 if lot.held else problem.machine_share
        column = int(
            builder.variables(1, cost=lot.price_usd_h * (1 + share), upper=lot.limit, integer=True)[0]
        )
        variables.append(column)
        per_lot.setdefault(use.lot, []).append(column)
        machines.append(MachineVariable(site=index, lot=use.lot, column=column))
    fresh = np.array([v >= 0 for v in variables], dtype=bool)
    at = np.array(variables, dtype=np.int64)
    _spread(builder, rows, at[fresh], -hosting.capacity.T[fresh])
    for lot_index, ways in per_lot.items():
        if len(ways) > 1:
            builder.entries(builder.rows(1, upper=site.lots[lot_index].limit), ways, 1.0)
    if sliced:
        _keep_shaped(builder, problem, index, site, nu, rows, machines)
    else:
        staying = np.flatnonzero(here & (columns.kept >= 0))
        if staying.size:
            held = np.array([site.lots[use.lot].held for use in hosting.uses], dtype=bool)
            stay = builder.rows(len(hosting.weights), upper=0.0)
            _spread(builder, stay, nu[staying], columns.usage[staying] @ hosting.weights.T)
            _spread(builder, stay, at[held], -hosting.capacity.T[held])


def _keep_shaped(
    builder: ProgramBuilder,
    problem: Problem,
    index: int,
    site: Site,
    nu: Ints,
    rows: Ints,
    machines: list[MachineVariable],
) -> None:
    """Held machines with running nodes: N_h, u_sh, and the GPUs that kept nodes take."""
    columns = problem.columns
    pins: dict[str, dict[int, int]] = {}
    for line in np.flatnonzero((columns.domain == index) & (columns.kept >= 0)):
        for pin in problem.kept[int(columns.kept[line])].pins:
            taken = pins.setdefault(pin.machine_id, {})
            taken[int(nu[line])] = taken.get(int(nu[line]), 0) + pin.gpus
    for offset, (lot, machine_id) in enumerate(zip(site.shaped, site.machine_ids, strict=True)):
        held = builder.variables(1, cost=lot.price_usd_h, upper=1.0, integer=True)
        machines.append(MachineVariable(site=index, lot=len(site.lots) + offset, column=int(held[0])))
        here = [k for k, use in enumerate(site.hosting.uses) if use.lot == len(site.lots) + offset]
        blocks = [
            (int(row), float(site.hosting.capacity[position, k]), site.hosting.uses[k].sliced)
            for k in here
            for position, row in enumerate(rows)
            if site.hosting.capacity[position, k] > 0
        ]
        whole = [(row, builder.variables(1, upper=1.0, integer=True)) for row, _, cut in blocks if not cut]
        for row, taken_whole in whole:
            builder.entries([row], taken_whole, -1.0)
        sizes = _sizes(problem, site, lot.gpu, lot.gpus) or (1,)
        sliced_rows = [row for row, _, cut in blocks if cut]
        for size, row in zip(sizes, sliced_rows or [-1], strict=True):
            room = builder.rows(1, upper=0.0)
            if row >= 0:
                given = builder.variables(1, upper=lot.gpus // size, integer=True)
                builder.entries([row], given, -float(size))
                builder.entries(room, given, float(size))
            for _, taken_whole in whole:
                builder.entries(room, taken_whole, float(lot.gpus))
            for column, gpus in pins.get(machine_id, {}).items():
                builder.entries(room, [column], float(gpus))
            builder.entries(room, held, -float(lot.gpus))


def _sizes(problem: Problem, site: Site, gpu: str, gpus: int) -> tuple[int, ...]:
    """Sliced sizes that fit on a machine of `gpus` GPUs, in the order of the hosting rows."""
    sizes = {kind.count for kind in problem.node_types if kind.gpu == gpu and kind.count <= gpus}
    return tuple(sorted(size for size in sizes if size & (size - 1) == 0))


def _serve(builder: ProgramBuilder, problem: Problem, model: int, nu: Ints, fraction: int) -> dict[int, int]:
    """The demand rows of a model; returns its f by site where its phases are coupled."""
    columns, view = problem.columns, problem.view
    mine = [(i, need) for i, need in enumerate(problem.needs) if need.model == model and need.demand > 0]
    domains = sorted({int(d) for index, _ in mine for d in columns.domain[columns.service == index]})
    apart = coupled(view.models[model], view) and len(mine) > 1 and len(domains) > 1
    shares: dict[int, int] = {}
    if apart:
        variables = builder.variables(len(domains), upper=1.0)
        shares = dict(zip(domains, map(int, variables), strict=True))
        total = builder.rows(1, lower=0.0)
        builder.entries(total, variables, 1.0)
        builder.entries(total, [fraction], -1.0)
    for index, need in mine:
        lines = np.flatnonzero(columns.service == index)
        scaled = tightened(columns.throughput[lines], need.demand, tighten=problem.tighten)
        for domain in domains if apart else [-1]:
            picked = columns.domain[lines] == domain if apart else np.ones(len(lines), dtype=bool)
            row = builder.rows(1, lower=0.0)
            builder.entries(row, nu[lines[picked]], scaled[picked])
            builder.entries(row, [shares.get(domain, fraction)], -1.0)
    return shares


def _spread(builder: ProgramBuilder, rows: Ints, columns: Ints, values: Floats) -> None:
    """Entries of `values` (columns, rows), zeros left out."""
    j, i = np.nonzero(values)
    builder.entries(rows[i], columns[j], values[j, i])
