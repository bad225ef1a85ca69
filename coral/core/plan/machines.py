"""The rows of machines: which are held or rented, and that all nodes fit on them (see `formulation`)."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from coral.core.plan.draft import Draft
from coral.core.plan.problem import Problem, Site
from coral.hookspecs.planner import ProgramBuilder
from coral.types.program import Floats, Ints


class MachineVariable(Struct, frozen=True, kw_only=True):
    """N of lot `lot` of site `site` (its `lots` or, past them, its `shaped`), in one way of use."""

    site: int
    lot: int
    column: int


def host(draft: Draft, problem: Problem, index: int, nu: Ints) -> list[MachineVariable]:
    """N_c of a site, their limits, the hosting rows, and what keeps kept instances on held machines."""
    builder, site = draft.builder, problem.sites[index]
    hosting, columns = site.hosting, problem.columns
    machines: list[MachineVariable] = []
    here = columns.domain == index
    sliced = problem.view.options.slices
    guests = np.flatnonzero(here & (columns.kept < 0)) if sliced else np.flatnonzero(here)
    rows = draft.rows("hosting", len(hosting.weights), upper=0.0, site=index)
    _spread(builder, rows, nu[guests], columns.usage[guests] @ hosting.weights.T)
    per_lot: dict[int, list[int]] = {}
    variables: list[int] = []
    for use in hosting.uses:
        if use.lot >= len(site.lots):
            variables.append(-1)
            continue
        lot = site.lots[use.lot]
        cost = lot.price_usd_h + problem.machine_charge(lot)
        column = int(builder.variables(1, cost=cost, upper=lot.limit, integer=True)[0])
        variables.append(column)
        per_lot.setdefault(use.lot, []).append(column)
        machines.append(MachineVariable(site=index, lot=use.lot, column=column))
    fresh = np.array([v >= 0 for v in variables], dtype=bool)
    at = np.array(variables, dtype=np.int64)
    _spread(builder, rows, at[fresh], -hosting.capacity.T[fresh])
    for lot_index, ways in per_lot.items():
        if len(ways) > 1:
            both = draft.rows("limit", 1, upper=site.lots[lot_index].limit, site=index)
            builder.entries(both, ways, 1.0)
    if sliced:
        machines += _keep_shaped(draft, problem, index, site, nu, rows)
    else:
        staying = np.flatnonzero(here & (columns.kept >= 0))
        if staying.size:
            held = np.array([site.lots[use.lot].held for use in hosting.uses], dtype=bool)
            stay = draft.rows("staying", len(hosting.weights), upper=0.0, site=index)
            _spread(builder, stay, nu[staying], columns.usage[staying] @ hosting.weights.T)
            _spread(builder, stay, at[held], -hosting.capacity.T[held])
    return machines


def _keep_shaped(
    draft: Draft, problem: Problem, index: int, site: Site, nu: Ints, rows: Ints
) -> list[MachineVariable]:
    """Held machines with running nodes: N_h, u_sh, and the GPUs that kept nodes take."""
    builder, columns = draft.builder, problem.columns
    machines: list[MachineVariable] = []
    pins: dict[str, dict[int, int]] = {}
    for line in np.flatnonzero(columns.kept >= 0):  # of any site: an instance may be on both markets
        for pin in problem.kept[int(columns.kept[line])].pins:
            taken = pins.setdefault(pin.machine_id, {})
            taken[int(nu[line])] = taken.get(int(nu[line]), 0) + pin.gpus
    for offset, (lot, machine_id) in enumerate(zip(site.shaped, site.machine_ids, strict=True)):
        cost = lot.price_usd_h + problem.machine_charge(lot)
        held = builder.variables(1, cost=cost, upper=1.0, integer=True)
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
            room = draft.rows("shaped", 1, upper=0.0, site=index)
            if row >= 0:
                given = builder.variables(1, upper=lot.gpus // size, integer=True)
                builder.entries([row], given, -float(size))
                builder.entries(room, given, float(size))
            for _, taken_whole in whole:
                builder.entries(room, taken_whole, float(lot.gpus))
            for column, gpus in pins.get(machine_id, {}).items():
                builder.entries(room, [column], float(gpus))
            builder.entries(room, held, -float(lot.gpus))
    return machines


def _sizes(problem: Problem, site: Site, gpu: str, gpus: int) -> tuple[int, ...]:
    """Sliced sizes that fit on a machine of `gpus` GPUs, in the order of the hosting rows."""
    sizes = {kind.count for kind in problem.node_types if kind.gpu == gpu and kind.count <= gpus}
    return tuple(sorted(size for size in sizes if size & (size - 1) == 0))


def _spread(builder: ProgramBuilder, rows: Ints, columns: Ints, values: Floats) -> None:
    """Entries of `values` (columns, rows), zeros left out."""
    j, i = np.nonzero(values)
    builder.entries(rows[i], columns[j], values[j, i])
