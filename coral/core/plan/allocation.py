"""A solution in words: how many of each column, how many machines of each lot; and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from coral.core.plan.formulation import Formulation
from coral.core.plan.hosting import is_power_of_two
from coral.core.plan.limits import exceeded
from coral.core.plan.packing import Bin, Item, Packing, pack
from coral.core.plan.problem import Problem, Site
from coral.core.plan.supply import Lot
from coral.types.program import Floats, Ints


class Allocation(Struct, frozen=True, kw_only=True, eq=False):
    """`counts` (columns,); `machines[site][lot]`: how many, lots then shaped ones."""

    counts: Ints
    machines: tuple[tuple[int, ...], ...]


def allocation(problem: Problem, formulation: Formulation, x: Floats) -> Allocation:
    machines = [[0] * (len(site.lots) + len(site.shaped)) for site in problem.sites]
    for variable in formulation.machines:
        machines[variable.site][variable.lot] += round(float(x[variable.column]))
    for site, row in zip(problem.sites, machines, strict=True):
        _hold(site.lots, row)
    counts = np.round(x[formulation.nu]).astype(np.int64)
    return Allocation(counts=counts, machines=tuple(tuple(row) for row in machines))


def _hold(lots: Sequence[Lot], counts: list[int]) -> None:
    """Held machines before new ones of the same kind: never dearer, and free ones are not churned."""
    for index, lot in enumerate(lots):
        if not lot.held:
            continue
        for other, sold in enumerate(lots):
            if not sold.held and sold.kind == lot.kind:
                moved = min(counts[other], lot.limit - counts[index])
                counts[other] -= moved
                counts[index] += moved


def steadied(problem: Problem, found: Allocation) -> Allocation:
    """Running instances before new ones of the same template, where there is no charge that says so."""
    columns = problem.columns
    counts = found.counts.copy()
    for line in np.flatnonzero((columns.kept >= 0) & (found.counts < columns.upper)):
        alike = np.flatnonzero(
            (columns.kept < 0)
            & (columns.service == columns.service[line])
            & (columns.domain == columns.domain[line])
            & (counts > 0)
            & (columns.throughput <= columns.throughput[line])
            & (columns.usage == columns.usage[line]).all(axis=1)
        )
        for other in alike:
            moved = min(int(columns.upper[line]) - int(counts[line]), int(counts[other]))
            counts[line] += moved
            counts[other] -= moved
    swapped = Allocation(counts=counts, machines=found.machines)
    return found if trimmed(problem, swapped)[1] else swapped


def trimmed(problem: Problem, found: Allocation) -> tuple[Allocation, list[str]]:
    """Pack every node into the machines, machine by machine; drop machines that stay empty.

    Also returns what does not hold of the original problem: a node without room, more machines than
    there are, more kept than run. Nothing here relies on the rows the solver was given.
    """
    faults = _count_faults(problem, found)
    machines = []
    for index, site in enumerate(problem.sites):
        lots = (*site.lots, *site.shaped)
        packing = _pack_site(problem, found, index, lots)
        if packing.left:
            names = sorted({f"{item.gpu} x{item.count}" for item in packing.left})
            faults.append(f"{len(packing.left)} nodes have no room in {site.domain}: {', '.join(names)}")
        used = [0] * len(lots)
        for one in packing.bins:
            if one.used > 0:
                used[int(one.key.split("/")[0])] += 1
        machines.append(tuple(used))
    faults += exceeded(problem, found.counts, machines)
    return Allocation(counts=found.counts, machines=tuple(machines)), faults


def _count_faults(problem: Problem, found: Allocation) -> list[str]:
    faults = []
    if (found.counts < 0).any():
        faults.append("a count is negative")
    over = np.flatnonzero((problem.columns.kept >= 0) & (found.counts > problem.columns.upper))
    if over.size:
        faults.append(f"{over.size} kept columns exceed what runs")
    for site, counts in zip(problem.sites, found.machines, strict=True):
        for lot, count in zip((*site.lots, *site.shaped), counts, strict=True):
            if not 0 <= count <= lot.limit:
                faults.append(
                    f"{count} machines of {lot.machine_type} in {lot.domain}, there are {lot.limit}"
                )
    return faults


def _pack_site(problem: Problem, found: Allocation, index: int, lots: Sequence[Lot]) -> Packing:
    """Kept nodes first, on the machines they are pinned to or any held one; then the new ones."""
    site = problem.sites[index]
    offset = len(site.lots)
    here = np.flatnonzero((problem.columns.domain == index) & (found.counts > 0))
    pinned = _pinned(problem, found, site)
    staying: list[Item] = []
    fresh: list[Item] = []
    for line in here:
        group = int(problem.columns.kept[line])
        count = int(found.counts[line])
        if group >= 0 and problem.kept[group].pins:
            continue
        (staying if group >= 0 else fresh).extend(_items(problem, int(line), count, index))
    bins = []
    for lot_index, (lot, count) in enumerate(zip(lots, found.machines[index], strict=True)):
        for number in range(count):
            used = pinned.pop(site.machine_ids[lot_index - offset], 0) if lot_index >= offset else 0
            key = f"{lot_index}/{number}"
            bins.append(Bin(key=key, domain=lot.domain, gpu=lot.gpu, gpus=lot.gpus, used=used))
    lost = [
        Item(key=machine, domain=site.domain, gpu="a machine that is not held", count=gpus)
        for machine, gpus in pinned.items()
    ]
    held = [one for one in bins if lots[int(one.key.split("/")[0])].held]
    first = pack(staying, held)
    after = {one.key: one for one in first.bins}
    second = pack(fresh, [after.get(one.key, one) for one in bins])
    return Packing(
        where={**first.where, **second.where},
        bins=second.bins,
        left=(*lost, *first.left, *second.left),
    )


def _pinned(problem: Problem, found: Allocation, site: Site) -> dict[str, int]:
    """GPUs that kept instances take on each shaped machine of a site; one may span two markets' sites."""
    ours = set(site.machine_ids)
    taken: dict[str, int] = {}
    for line in np.flatnonzero((problem.columns.kept >= 0) & (found.counts > 0)):
        for pin in problem.kept[int(problem.columns.kept[line])].pins:
            if pin.machine_id in ours:
                taken[pin.machine_id] = taken.get(pin.machine_id, 0) + pin.gpus
    return taken


def _items(problem: Problem, line: int, count: int, index: int) -> list[Item]:
    """The nodes of `count` instances of a column."""
    slices = problem.view.options.slices
    domain = problem.sites[index].domain
    items: list[Item] = []
    for at in np.flatnonzero(problem.columns.usage[line]):
        kind = problem.node_types[int(at)]
        items.extend(
            Item(
                key=f"{line}/{at}/{number}",
                domain=domain,
                gpu=kind.gpu,
                count=kind.count,
                whole=not (slices and is_power_of_two(kind.count)),
            )
            for number in range(count * int(problem.columns.usage[line, at]))
        )
    return items
