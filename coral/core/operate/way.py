"""A way to the plan on which every floor holds, where there is not room for everything at once: a search.

Which of several missing instances takes the free place, and which old one goes first, decides whether the
others can start before their predecessors go. In the search whatever starts is ready at once and whatever
drains is gone at once, so a way is an order of starts, drains and, where money is short, rents. Bounded in
steps: without an answer nothing is lost but this foresight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from coral.core.operate.actions import StartInstance
from coral.core.operate.holdings import HeldInstance
from coral.core.operate.renting import Hire
from coral.core.operate.served import Floors
from coral.core.operate.slots import Claim, Slots, free_slots
from coral.types.hardware import Node, NodeType
from coral.types.plan import PlannedInstances

MOST = 16
"""Starts, drains and rents of a change that is searched; larger ones go without."""
STEPS = 400


class Start(Struct, frozen=True, kw_only=True):
    """`machines`: where each node goes, by stage."""

    planned: PlannedInstances
    machines: tuple[tuple[str, ...], ...]

    def needs(self) -> Counter[str]:
        """Devices by machine."""
        needs: Counter[str] = Counter()
        for stage, ids in zip(self.planned.template.placement.stages, self.machines, strict=True):
            for node, id in zip(stage.nodes, ids, strict=True):
                needs[id] += node.node_type.count
        return needs

    def on(self, free: dict[str, list[int]]) -> StartInstance:
        """On the first devices that are free, which are taken from there."""
        stages = []
        for stage, ids in zip(self.planned.template.placement.stages, self.machines, strict=True):
            nodes = []
            for node, id in zip(stage.nodes, ids, strict=True):
                kind = node.node_type
                devices, free[id] = free[id][: kind.count], free[id][kind.count :]
                nodes.append(Node(machine_id=id, node_type=kind, devices=tuple(devices)))
            stages.append(tuple(nodes))
        claim = Claim(stages=tuple(stages))
        return StartInstance(template=self.planned.template, domain=self.planned.domain, claim=claim)


class Drain(Struct, frozen=True, kw_only=True):
    """`free`: it takes nothing from what is served once all that starts before it is ready."""

    instance: HeldInstance
    free: bool


Move = Start | Drain | Hire


class Search:
    """`old`: what is to go, in the order in which it would best. `slots`: what is free on the machines of the
    plan. `hires`: machines that come when they are rented. `surplus`: by id the price of machines that are
    given back when nothing is left on them."""

    def __init__(
        self,
        missing: Sequence[PlannedInstances],
        old: Sequence[HeldInstance],
        slots: Sequence[Slots],
        hires: Sequence[Hire],
        money_usd_h: float,
        surplus: Mapping[str, float],
        floors: Floors,
    ) -> None:
        self._missing, self._old, self._hires = list(missing), list(old), list(hires)
        fresh = free_slots([one.machine for one in hires if one.machine is not None], ())
        self._slots = {slot.machine_id: slot for slot in (*slots, *fresh)}
        self._free = {slot.machine_id: len(slot.free) for slot in slots}
        self._money_usd_h, self._surplus = money_usd_h, surplus
        self._floors = floors
        self._moves: list[Move] = []
        self._dead: set[object] = set()
        self._steps = STEPS
        self._lasting = {node.machine_id for one in old for node in one.claim.nodes}

    def find(self) -> tuple[Move, ...] | None:
        """None where there is none, or where it was not found in time."""
        if len(self._missing) + len(self._old) + len(self._hires) > MOST:
            return None
        return tuple(self._moves) if self._walk() else None

    def _walk(self) -> bool:
        if not self._missing and not self._old:
            return True
        state = self._state()
        if state in self._dead:
            return False
        self._steps -= 1
        if self._steps < 0:
            return False
        found = self._further()
        if not found:
            self._dead.add(state)
        return found

    def _further(self) -> bool:
        free = [one for one in self._old if self._floors.is_free(one)]
        if any(self._drain(one, free=True) for one in free):
            return True
        for planned in dict.fromkeys(self._missing):
            if any(self._start(planned, machines) for machines in self._places(planned)):
                return True
        money = self._money()
        kinds = {one.offer: one for one in reversed(self._hires) if one.price_usd_h <= money + 1e-9}
        if any(self._hire(one) for _, one in sorted(kinds.items())):
            return True
        rest = [one for one in self._old if one not in free and self._floors.keeps(one)]
        return any(self._drain(one, free=False) for one in rest)

    def _money(self) -> float:
        """What may be spent, with what is given back of machines on which nothing is left."""
        used = {node.machine_id for one in self._old for node in one.claim.nodes}
        return self._money_usd_h + sum(price for id, price in self._surplus.items() if id not in used)

    def _hire(self, one: Hire) -> bool:
        if one.machine is None:
            return False
        at, id = self._hires.index(one), one.machine.id
        del self._hires[at]
        self._money_usd_h -= one.price_usd_h
        self._free[id] = len(self._slots[id].free)
        self._moves.append(one)
        if self._walk():
            return True
        self._moves.pop()
        del self._free[id]
        self._money_usd_h += one.price_usd_h
        self._hires.insert(at, one)
        return False

    def _drain(self, one: HeldInstance, *, free: bool) -> bool:
        at = self._old.index(one)
        before = dict(self._free)
        del self._old[at]
        self._floors.go(one)
        for node in one.claim.nodes:
            if node.machine_id in self._free:
                self._free[node.machine_id] += len(node.devices)
        self._moves.append(Drain(instance=one, free=free))
        if self._walk():
            return True
        self._moves.pop()
        self._free = before
        self._floors.back(one)
        self._old.insert(at, one)
        return False

    def _start(self, planned: PlannedInstances, machines: tuple[tuple[str, ...], ...]) -> bool:
        at = self._missing.index(planned)
        del self._missing[at]
        self._take(planned, machines, -1)
        self._floors.come(planned.template, planned.domain)
        self._moves.append(Start(planned=planned, machines=machines))
        if self._walk():
            return True
        self._moves.pop()
        self._floors.come(planned.template, planned.domain, -1)
        self._take(planned, machines, +1)
        self._missing.insert(at, planned)
        return False

    def _take(self, planned: PlannedInstances, machines: tuple[tuple[str, ...], ...], sign: int) -> None:
        for stage, ids in zip(planned.template.placement.stages, machines, strict=True):
            for node, id in zip(stage.nodes, ids, strict=True):
                self._free[id] += sign * node.node_type.count

    def _places(self, planned: PlannedInstances) -> Iterator[tuple[tuple[str, ...], ...]]:
        """Every way to place its nodes that is not like another, the tightest machines first."""
        kinds = [node.node_type for stage in planned.template.placement.stages for node in stage.nodes]
        seen: set[object] = set()
        for chosen in self._choices(planned, kinds, ()):
            after = dict(self._free)
            for id, kind in zip(chosen, kinds, strict=True):
                after[id] -= kind.count
            like = self._like(after)
            if like not in seen:
                seen.add(like)
                ids = iter(chosen)
                yield tuple(
                    tuple(next(ids) for _ in stage.nodes) for stage in planned.template.placement.stages
                )

    def _choices(
        self, planned: PlannedInstances, kinds: Sequence[NodeType], chosen: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        if len(chosen) == len(kinds):
            yield chosen
            return
        kind = kinds[len(chosen)]
        left = dict(self._free)
        for id, before in zip(chosen, kinds, strict=False):
            left[id] -= before.count
        for id in sorted(left, key=lambda id: (left[id], id)):
            slot = self._slots[id]
            fits = slot.gpu == kind.gpu and slot.domain == planned.domain and left[id] >= kind.count
            if fits and planned.market in (None, slot.market):
                yield from self._choices(planned, kinds, (*chosen, id))

    def _like(self, free: dict[str, int]) -> object:
        """Machines without anything that is to go are alike."""
        return tuple(
            sorted(
                (slot.gpu, slot.domain, slot.market, free[id], id if id in self._lasting else "")
                for id, slot in self._slots.items()
                if id in free
            )
        )

    def _state(self) -> object:
        missing = tuple(sorted(one.template.id for one in self._missing))
        return frozenset(one.id for one in self._old), missing, self._like(self._free)
