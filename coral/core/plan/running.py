"""Instances that run and may be kept, and the held machines that their nodes sit on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from coral.core.plan.markets import markets_apart, worst
from coral.core.plan.packing import Bin, Item, pack
from coral.core.plan.services import Need
from coral.hookspecs.planner import View
from coral.types.hardware import Domain, Machine, Market, NodeType
from coral.types.placement import Template
from coral.types.plan import RunningInstance

MARKETS: tuple[Market, ...] = ("on_demand", "spot")


class Pin(Struct, frozen=True, kw_only=True, order=True):
    """GPUs of one held machine that a running instance uses."""

    machine_id: str
    gpus: int


class Kept(Struct, frozen=True, kw_only=True):
    """`count` running instances alike. With pins, count is 1: an instance has its own machines."""

    service: int
    template: Template
    domain: Domain
    count: int
    ids: tuple[str, ...]
    pins: tuple[Pin, ...] = ()
    market: Market | None = None
    """Where markets are planned apart: that of its machines."""


def keepable(view: View, needs: Sequence[Need], *, slices: bool) -> tuple[Kept, ...]:
    """What may be kept, sorted. An instance whose model, phase or SLO is no longer asked for, or one of
    whose machines is gone, is left out: its throughput counts for nothing.

    Where a node is a whole machine, machines of a kind are interchangeable and instances are only
    counted. With slices each instance is pinned to the machines that its nodes sit on.

    Where markets are planned apart, one that has machines of both counts as a spot one; where its nodes
    are whole machines it is left out, since neither market's machines can carry it.
    """
    service = {(need.name, need.phase): index for index, need in enumerate(needs) if need.demand > 0}
    wanted = [
        (service[one.template.model, one.template.phase], one)
        for one in sorted(view.running, key=lambda one: one.id)
        if (one.template.model, one.template.phase) in service
        and view.models[needs[service[one.template.model, one.template.phase]].model].slo == one.template.slo
    ]
    if slices:
        return _pinned(view, wanted)
    if not markets_apart(view):
        return _counted([(service, None, one) for service, one in wanted])
    markets = _markets(view, [one for _, one in wanted])
    return _counted([(s, markets[one.id], one) for s, one in wanted if one.id in markets])


def _markets(view: View, running: Sequence[RunningInstance]) -> dict[str, Market]:
    """By instance the one market its machines are of; where the view does not say: what has room for it."""
    machines = {machine.id: machine for machine in view.machines}
    found: dict[str, Market] = {}
    taken: set[str] = set()
    for one in running:
        ids = {node.machine_id for node in one.nodes}
        if ids and ids <= machines.keys():
            taken |= ids
            markets = {machines[id].market for id in ids}
            if len(markets) == 1:
                found[one.id] = worst(markets)
    unknown = [one for one in running if not one.nodes]
    for market in MARKETS:
        free = [m for m in view.machines if m.market == market and m.id not in taken]
        waiting = [one for one in unknown if one.id not in found]
        found |= dict.fromkeys(_first_fit(waiting, free, (), whole=True), market)
    return found


def _counted(wanted: Sequence[tuple[int, Market | None, RunningInstance]]) -> tuple[Kept, ...]:
    groups: dict[tuple[int, Domain, str, Market | None], list[RunningInstance]] = {}
    for service, market, one in wanted:
        groups.setdefault((service, one.domain, one.template.id, market), []).append(one)
    return tuple(
        Kept(
            service=service,
            template=group[0].template,
            domain=domain,
            count=len(group),
            ids=tuple(one.id for one in group),
            market=market,
        )
        for (service, domain, _, market), group in sorted(groups.items())
    )


def _pinned(view: View, wanted: Sequence[tuple[int, RunningInstance]]) -> tuple[Kept, ...]:
    machines = {machine.id: machine for machine in view.machines}
    pins = {one.id: _known_pins(one, machines) for _, one in wanted if one.nodes}
    guessed = _first_fit([one for _, one in wanted if not one.nodes], view.machines, pins.values())
    apart = markets_apart(view)
    kept = []
    for service, one in wanted:
        where = pins.get(one.id) or guessed.get(one.id)
        if where is not None:
            kept.append(
                Kept(
                    service=service,
                    template=one.template,
                    domain=one.domain,
                    count=1,
                    ids=(one.id,),
                    pins=where,
                    market=worst({machines[pin.machine_id].market for pin in where}) if apart else None,
                )
            )
    return tuple(kept)


def _known_pins(one: RunningInstance, machines: dict[str, Machine]) -> tuple[Pin, ...] | None:
    if any(node.machine_id not in machines for node in one.nodes):
        return None
    return tuple(sorted(Pin(machine_id=node.machine_id, gpus=len(node.devices)) for node in one.nodes))


def _first_fit(
    instances: Sequence[RunningInstance],
    machines: Sequence[Machine],
    taken: Iterable[tuple[Pin, ...] | None],
    *,
    whole: bool = False,
) -> dict[str, tuple[Pin, ...]]:
    """Where the view does not say what sits where: largest node first, into the fullest machine."""
    used: dict[str, int] = {}
    for pins in taken:
        for pin in pins or ():
            used[pin.machine_id] = used.get(pin.machine_id, 0) + pin.gpus
    bins = [
        Bin(
            key=machine.id,
            domain=machine.domain,
            gpu=machine.machine_type.gpu,
            gpus=machine.machine_type.gpus,
            used=used.get(machine.id, 0),
        )
        for machine in sorted(machines, key=lambda machine: machine.id)
    ]
    found: dict[str, tuple[Pin, ...]] = {}
    for one in instances:
        items = [
            Item(key=f"{one.id}/{index}", domain=one.domain, gpu=kind.gpu, count=kind.count, whole=whole)
            for index, kind in enumerate(_nodes(one.template))
        ]
        packed = pack(items, bins)
        if packed.left:
            continue
        bins = list(packed.bins)
        found[one.id] = tuple(
            sorted(Pin(machine_id=packed.where[item.key], gpus=item.count) for item in items)
        )
    return found


def _nodes(template: Template) -> list[NodeType]:
    return [node.node_type for stage in template.placement.stages for node in stage.nodes]
