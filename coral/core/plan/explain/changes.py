"""What differs between two plans: machines, instances, services, cost.

Plain data, the layout that `coral plan --diff` and `--what-if` print as JSON::

    {changed,
     machines:  [{machine_type, domain, market, before, after, usd_h}],
     instances: [{model, phase, domain, nodes, before, after}],
     services:  [{model, phase, unit, demand: {before, after}, served: {before, after}}],
     price_usd_h: {before, after}, initialization_usd_h: {before, after}}

Only what differs is listed, but of the costs. `before` and `after` of machines and instances count them; a
service that one of the plans does not have is null there. `usd_h` is what the change of these machines
costs, at each plan's own prices.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from coral.core.plan.document import SavedInstances, SavedMachines, SavedPlan, SavedService


class Pair(Struct, frozen=True, kw_only=True):
    before: float | None
    after: float | None

    @property
    def same(self) -> bool:
        if self.before is None or self.after is None:
            return self.before is self.after
        return _close(self.before, self.after)


class MachineChange(Struct, frozen=True, kw_only=True):
    machine_type: str
    domain: str
    market: str
    before: int
    after: int
    usd_h: float


class InstanceChange(Struct, frozen=True, kw_only=True):
    model: str
    phase: str
    domain: str
    nodes: str
    before: int
    after: int


class ServiceChange(Struct, frozen=True, kw_only=True):
    model: str
    phase: str
    unit: str
    demand: Pair
    served: Pair


class Changes(Struct, frozen=True, kw_only=True):
    changed: bool
    machines: tuple[MachineChange, ...]
    instances: tuple[InstanceChange, ...]
    services: tuple[ServiceChange, ...]
    price_usd_h: Pair
    initialization_usd_h: Pair


def changes(before: SavedPlan, after: SavedPlan) -> Changes:
    """What differs, and no more."""
    both = side_by_side(before, after)
    machines = tuple(one for one in both.machines if one.before != one.after or not _close(one.usd_h, 0.0))
    instances = tuple(one for one in both.instances if one.before != one.after)
    services = tuple(one for one in both.services if not (one.demand.same and one.served.same))
    return replace(both, machines=machines, instances=instances, services=services)


def side_by_side(before: SavedPlan, after: SavedPlan) -> Changes:
    """All of both plans, what is alike too."""
    machines, instances = _machines(before, after), _instances(before, after)
    services = _services(before, after)
    price = Pair(before=before.price_usd_h, after=after.price_usd_h)
    charged = Pair(before=before.initialization_usd_h, after=after.initialization_usd_h)
    same = (
        all(one.before == one.after and _close(one.usd_h, 0.0) for one in machines)
        and all(one.before == one.after for one in instances)
        and all(one.demand.same and one.served.same for one in services)
        and price.same
        and charged.same
    )
    return Changes(
        changed=not same,
        machines=machines,
        instances=instances,
        services=services,
        price_usd_h=price,
        initialization_usd_h=charged,
    )


def _machines(before: SavedPlan, after: SavedPlan) -> tuple[MachineChange, ...]:
    found = []
    old, new = _by_offer(before.machines), _by_offer(after.machines)
    for key in sorted({*old, *new}):
        (had, paid), (has, pays) = old.get(key, (0, 0.0)), new.get(key, (0, 0.0))
        machine_type, domain, market = key
        found.append(
            MachineChange(
                machine_type=machine_type,
                domain=domain,
                market=market,
                before=had,
                after=has,
                usd_h=pays - paid,
            )
        )
    return tuple(found)


def _by_offer(machines: tuple[SavedMachines, ...]) -> dict[tuple[str, str, str], tuple[int, float]]:
    """How many, and what they cost together: held ones may have another price than those on offer."""
    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for one in machines:
        key = (one.machine_type, one.domain, one.market)
        count, usd_h = found.get(key, (0, 0.0))
        here = one.kept + one.new
        found[key] = (count + here, usd_h + here * one.price_usd_h)
    return found


def _instances(before: SavedPlan, after: SavedPlan) -> tuple[InstanceChange, ...]:
    old, new = _by_template(before.instances), _by_template(after.instances)
    found = []
    for key in sorted({*old, *new}):
        model, phase, domain, nodes = key
        found.append(
            InstanceChange(
                model=model,
                phase=phase,
                domain=domain,
                nodes=nodes,
                before=old.get(key, 0),
                after=new.get(key, 0),
            )
        )
    return tuple(found)


def _by_template(instances: tuple[SavedInstances, ...]) -> dict[tuple[str, str, str, str], int]:
    """By what they are made of, stage by stage: ids name an SLO and a layer cut that may have moved."""
    found: dict[tuple[str, str, str, str], int] = {}
    for one in instances:
        stages = " | ".join(
            " + ".join(
                f"{node.count}× {node.node_type}" if node.count > 1 else node.node_type
                for node in sorted(stage.nodes, key=lambda node: node.node_type)
            )
            for stage in one.stages
        )
        key = (one.model, one.phase, one.domain, stages)
        found[key] = found.get(key, 0) + one.count
    return found


def _services(before: SavedPlan, after: SavedPlan) -> tuple[ServiceChange, ...]:
    old = {(one.model, one.phase): one for one in before.services}
    new = {(one.model, one.phase): one for one in after.services}
    found = []
    for key in {**old, **new}:
        had, has = old.get(key), new.get(key)
        either = has or had
        if either is None:
            continue
        found.append(
            ServiceChange(
                model=key[0],
                phase=key[1],
                unit=either.unit,
                demand=_pair(had, has, "demand"),
                served=_pair(had, has, "served"),
            )
        )
    return tuple(found)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def _pair(before: SavedService | None, after: SavedService | None, name: str) -> Pair:
    return Pair(
        before=None if before is None else float(getattr(before, name)),
        after=None if after is None else float(getattr(after, name)),
    )
