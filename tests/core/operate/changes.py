"""Random changes of a plan, a small world in which they are carried out, and a search for the best way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from coral.core.operate.difference import template_key
from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.core.operate.reconcile import (
    Bounds,
    DrainInstance,
    EndMachine,
    HeldInstance,
    HeldMachine,
    OfferKey,
    Rent,
    Schedule,
    StartInstance,
    reconcile,
    settled,
)
from coral.core.operate.renting import Supply
from coral.core.operate.served import Asked, Capacity
from coral.core.operate.slots import Claim
from coral.types.hardware import Domain, Machine, MachineType, Node, NodeType
from coral.types.model import Phase, Slo
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan, PlannedInstances, PlannedMachines

HERE = Domain("local", "here")
SIZES = (("a1", "A", 1, 1.0), ("a2", "A", 2, 1.8), ("a4", "A", 4, 3.0), ("b2", "B", 2, 0.7))
KINDS = {
    name: (MachineType(name=name, gpu=gpu, gpus=gpus), price)
    for name, gpu, gpus, price in (
        ("a1", "A", 1, 1.0),
        ("a2", "A", 2, 1.8),
        ("a4", "A", 4, 3.0),
        ("b2", "B", 2, 0.7),
    )
}

TURNING = (MachineState.ORDERED, MachineState.DRAINING)


def template(
    model: str, phase: Phase, sizes: Sequence[tuple[str, int]], throughput: float, layers: int
) -> Template:
    """One stage a node. `layers` tells apart what is alike otherwise."""
    nodes = [StageNode(node_type=NodeType(gpu, size), throughput=throughput) for gpu, size in sizes]
    cuts = [*range(len(nodes)), layers]
    stages = tuple(
        Stage(first_layer=a, end_layer=b, nodes=(node,))
        for node, a, b in zip(nodes, cuts[:-1], cuts[1:], strict=True)
    )
    name = "+".join(f"{gpu}{size}" for gpu, size in sizes)
    return Template(
        id=f"{model}-{phase}-{name}-{throughput}-{layers}",
        model=model,
        phase=phase,
        slo=Slo(prefill_s=1.0, decode_s=0.1),
        placement=Placement(stages=stages),
        throughput=throughput,
    )


class Change(Struct, kw_only=True):
    """What is held, what is wanted, and what bounds the way."""

    machines: dict[str, HeldMachine]
    instances: dict[str, HeldInstance]
    plan: Plan
    bounds: Bounds


def machine(id: str, kind: str) -> HeldMachine:
    made, price = KINDS[kind]
    return HeldMachine(
        machine=Machine(id=id, machine_type=made, domain=HERE, price_usd_h=price), state=MachineState.JOINED
    )


class _Board:
    """Free devices by machine."""

    def __init__(self, machines: dict[str, str]) -> None:
        self.kinds = machines
        self.free = {id: list(range(KINDS[kind][0].gpus)) for id, kind in machines.items()}

    def place(self, draw: Random, wanted: Template) -> Claim | None:
        before = {id: list(free) for id, free in self.free.items()}
        stages = []
        for stage in wanted.placement.stages:
            (node,) = stage.nodes
            kind = node.node_type
            fits = [
                id
                for id, free in self.free.items()
                if KINDS[self.kinds[id]][0].gpu == kind.gpu and len(free) >= kind.count
            ]
            if not fits:
                self.free = before
                return None
            id = draw.choice(fits)
            devices, self.free[id] = self.free[id][: kind.count], self.free[id][kind.count :]
            stages.append((Node(machine_id=id, node_type=kind, devices=tuple(devices)),))
        return Claim(stages=tuple(stages))

    def take(self, claim: Claim) -> None:
        for node in claim.nodes:
            self.free[node.machine_id] = [d for d in self.free[node.machine_id] if d not in node.devices]


def change(draw: Random, *, machines: int, instances: int, apart: bool, tight: bool) -> Change:
    """A random one whose plan fits beside what stays. `apart`: with prefill and decode. `tight`: no machines
    but those that are held, and no money for more."""
    rates: dict[object, float] = {}
    phases: tuple[Phase, ...] = ("prefill", "decode") if apart else ("mixed",)

    def any_template(layers: int) -> Template:
        sizes = [("A", draw.choice((1, 1, 2, 2, 4)))] if draw.random() < 0.7 else [("A", 1), ("A", 1)]
        if draw.random() < 0.2:
            sizes = [("B", draw.choice((1, 2)))]
        model, phase = draw.choice("mn"), draw.choice(phases)
        like = rates.setdefault((model, phase, tuple(sizes), layers), float(draw.randint(1, 3)))
        return template(model, phase, sizes, like * sum(size for _, size in sizes), layers)

    held = {f"h{i}": draw.choice(tuple(KINDS)) for i in range(draw.randint(1, machines))}
    before = _Board(held)
    running: dict[str, HeldInstance] = {}
    for number in range(draw.randint(1, instances)):
        wanted = any_template(8)
        claim = before.place(draw, wanted)
        if claim is not None:
            id = f"i{number}"
            running[id] = HeldInstance(
                id=id,
                template=wanted,
                domain=HERE,
                state=InstanceState.READY,
                claim=claim,
                load=draw.randint(0, 5),
            )
    keep = {id: kind for id, kind in held.items() if tight or draw.random() < 0.6}
    fresh = {} if tight else {f"n{i}": draw.choice(tuple(KINDS)) for i in range(draw.randint(0, machines))}
    released = {held[id] for id in held.keys() - keep.keys()}
    for id, kind in list(fresh.items()):
        if kind in released:  # it would have kept that machine
            del fresh[id]
    after = _Board({**keep, **fresh})
    stays = [
        one for one in running.values() if set(one.claim.machines) <= keep.keys() and draw.random() < 0.3
    ]
    for one in stays:
        after.take(one.claim)
    new: list[Template] = []
    for _ in range(draw.randint(1, instances)):
        wanted = any_template(draw.choice((8, 9)))
        if after.place(draw, wanted) is not None:
            new.append(wanted)
    plan = _plan(keep, fresh, stays, new, running)
    least = max(_cost(held), _cost({**keep, **fresh}))
    budget = draw.choice((None, least, least + 1.0, _cost({**held, **fresh})))
    most = Counter(held.values()) + Counter(fresh.values())
    supply = {
        OfferKey(kind, HERE, "on_demand"): Supply(machine_type=KINDS[kind][0], most=number)
        for kind, number in most.items()
    }
    asked = {model: Asked(input_tokens=2.0, output_tokens=1.0) for model in "mn"}
    bounds = Bounds(
        supply=supply, budget_usd_h=budget, floor=draw.choice((0.5, 0.5, 0.25, 0.75)), asked=asked
    )
    return Change(
        machines={id: machine(id, kind) for id, kind in held.items()},
        instances=running,
        plan=plan,
        bounds=bounds,
    )


def _cost(machines: dict[str, str]) -> float:
    return sum(KINDS[kind][1] for kind in machines.values())


def _plan(
    keep: dict[str, str],
    fresh: dict[str, str],
    stays: Sequence[HeldInstance],
    new: Sequence[Template],
    running: dict[str, HeldInstance],
) -> Plan:
    kept, more = Counter(keep.values()), Counter(fresh.values())
    pinned = {id for one in stays for id in one.claim.machines}
    planned: dict[str, PlannedInstances] = {}
    for template, ids in [*((one.template, (one.id,)) for one in stays), *((one, ()) for one in new)]:
        before = planned.get(template.id, PlannedInstances(template=template, domain=HERE, count=0))
        planned[template.id] = replace(before, count=before.count + 1, stays=(*before.stays, *ids))
    staying = {one.id for one in stays}
    return Plan(
        planner="test",
        machines=tuple(
            PlannedMachines(
                machine_type=kind,
                domain=HERE,
                market="on_demand",
                price_usd_h=KINDS[kind][1],
                kept=kept[kind],
                new=more[kind],
                stays=tuple(id for id, its in keep.items() if its == kind and id in pinned),
            )
            for kind in (kept + more)
        ),
        instances=tuple(planned.values()),
        services=(),
        price_usd_h=0.0,
        initialization_usd_h=0.0,
        certificate=None,
        leaves=tuple(sorted(running.keys() - staying)),
    )


def settle(change: Change) -> Plan:
    return settled(
        change.plan, list(change.machines.values()), list(change.instances.values()), change.bounds
    )


class Walk:
    """Carries a change out, with events in a random order; `breaks` are the floors that did not hold."""

    def __init__(self, change: Change, draw: Random) -> None:
        self.machines, self.instances = dict(change.machines), dict(change.instances)
        self.plan, self.bounds = settle(change), change.bounds
        self.breaks: list[str] = []
        self.rented: set[OfferKey] = set()
        self.ended: set[OfferKey] = set()
        self.steps = 0
        self._draw = draw
        self._numbers = count()
        self._planned = Capacity(self.bounds.asked)
        for one in self.plan.instances:
            self._planned.add(one.template, one.domain, one.count)

    def run(self) -> None:
        """To its end; AssertionError where that is never reached, or what has to hold does not."""
        while True:
            schedule = self.ask()
            for action in schedule.actions:
                self._act(action)
            self._check()
            if not self._happen() and not schedule.actions:
                break
            self.steps += 1
            assert self.steps < 400, "the plan is never reached"
        self._reached()

    def ask(self) -> Schedule:
        machines, instances = list(self.machines.values()), list(self.instances.values())
        schedule = reconcile(self.plan, machines, instances, self.bounds)
        self._draw.shuffle(machines)
        self._draw.shuffle(instances)
        again = reconcile(self.plan, machines, instances, self.bounds)
        assert again == schedule, "the same question has the same answer, in whatever order things are told"
        return schedule

    def shares(self) -> dict[str, float]:
        ready = Capacity(self.bounds.asked)
        for one in self.instances.values():
            if one.state is InstanceState.READY:
                ready.add(one.template, one.domain)
        return {
            model: ready.served(model) / self._planned.served(model)
            for model in self._planned.models()
            if self._planned.served(model) > 0
        }

    # ------------------------------------------------------------ inside

    def _act(self, action: object) -> None:
        match action:
            case Rent(offer=key):
                assert key not in self.ended, f"{key} was given back in this change"
                self.rented.add(key)
                id = f"r{next(self._numbers)}"
                self.machines[id] = replace(machine(id, key.machine_type), state=MachineState.ORDERED)
            case StartInstance(template=template, domain=domain, claim=claim):
                id = f"s{next(self._numbers)}"
                for name in claim.machines:
                    assert self.machines[name].state is MachineState.JOINED
                self.instances[id] = HeldInstance(
                    id=id, template=template, domain=domain, state=InstanceState.LOADING, claim=claim
                )
            case DrainInstance(instance=id):
                one = self.instances[id]
                before = self.shares()
                now = InstanceState.DRAINING if one.ready else InstanceState.GONE
                self.instances[id] = replace(one, state=now)
                for model, share in self.shares().items():
                    if share < min(before[model], self.bounds.floor) - 1e-9:
                        self.breaks.append(f"{id}: {model} at {share:.2f}")
            case EndMachine(machine=id):
                key = OfferKey.of(self.machines[id].machine)
                assert key not in self.rented, f"{key} was rented in this change"
                self.ended.add(key)
                self.machines[id] = replace(self.machines[id], state=MachineState.DRAINING)
            case _:
                raise AssertionError(action)

    def _happen(self) -> bool:
        """One thing or more of those that are on their way; False where nothing is."""
        waiting = [
            *(
                id
                for id, one in self.machines.items()
                if one.state in (MachineState.ORDERED, MachineState.DRAINING)
            ),
            *(
                id
                for id, one in self.instances.items()
                if one.holding and one.state is not InstanceState.READY
            ),
        ]
        if not waiting:
            return False
        for id in self._draw.sample(waiting, self._draw.randint(1, len(waiting))):
            if id in self.machines:
                state = self.machines[id].state
                after = MachineState.JOINED if state is MachineState.ORDERED else MachineState.RELEASED
                self.machines[id] = replace(self.machines[id], state=after)
            elif self.instances[id].state is InstanceState.LOADING:
                self.instances[id] = replace(self.instances[id], state=InstanceState.READY)
            else:
                self.instances[id] = replace(
                    self.instances[id], state=InstanceState.GONE, holding=False, load=0
                )
        return True

    def _check(self) -> None:
        taken: set[tuple[str, int]] = set()
        for one in self.instances.values():
            for node in one.claim.nodes if one.holding else ():
                state = self.machines[node.machine_id].state
                assert state is MachineState.JOINED, f"{one.id} is on a machine that is {state}"
                for device in node.devices:
                    assert device < self.machines[node.machine_id].machine.machine_type.gpus
                    assert (node.machine_id, device) not in taken, "a device is claimed twice"
                    taken.add((node.machine_id, device))
        paid = [one for one in self.machines.values() if one.state is not MachineState.RELEASED]
        if self.bounds.budget_usd_h is not None:
            assert sum(one.machine.price_usd_h for one in paid) <= self.bounds.budget_usd_h + 1e-6
        for key, number in Counter(OfferKey.of(one.machine) for one in paid).items():
            assert number <= self.bounds.supply[key].most

    def _reached(self) -> None:
        wanted = Counter[bytes]()
        for one in self.plan.instances:
            wanted[template_key(one.template)] += one.count
        there = Counter(
            template_key(one.template) for one in self.instances.values() if one.state is InstanceState.READY
        )
        assert there == +wanted, "what runs is not what the plan wants"
        machines = Counter(
            one.machine.machine_type.name
            for one in self.machines.values()
            if one.state is MachineState.JOINED
        )
        assert machines == Counter({one.machine_type: one.kept + one.new for one in self.plan.machines})


class Search:
    """Whether there is any way at all on which all floors hold, whatever is drained, placed, rented and given
    back first; of machines that are alike those go that `reconcile` lets go. `known`: False where there were
    too many ways."""

    def __init__(self, change: Change, most: int = 60_000) -> None:
        self._change = change
        self._plan, self._bounds = change.plan, change.bounds
        staying = {id for one in self._plan.instances for id in one.stays}
        self._old = {id: one for id, one in change.instances.items() if id not in staying}
        self._stay = [one for id, one in change.instances.items() if id in staying]
        self._new = [one.template for one in self._plan.instances for _ in range(one.count - len(one.stays))]
        stays = {id for one in settle(change).machines for id in one.stays}
        self._surplus = change.machines.keys() - stays
        self._wanted = Counter({one.machine_type: one.kept + one.new for one in self._plan.machines})
        self._planned = Capacity(self._bounds.asked)
        for one in self._plan.instances:
            self._planned.add(one.template, one.domain, one.count)
        self._left = most
        self._seen: set[object] = set()

    @property
    def known(self) -> bool:
        return self._left > 0

    def attainable(self) -> bool:
        free = {
            id: one.machine.machine_type.gpus
            - sum(
                len(node.devices)
                for held in self._change.instances.values()
                for node in held.claim.nodes
                if node.machine_id == id
            )
            for id, one in self._change.machines.items()
        }
        kinds = {id: one.machine.machine_type.name for id, one in self._change.machines.items()}
        return self._from(frozenset(self._old), tuple(range(len(self._new))), free, kinds)

    def _share(self, model: str, old: frozenset[str], missing: tuple[int, ...]) -> float:
        ready = Capacity(self._bounds.asked)
        for one in [*self._stay, *(self._old[id] for id in sorted(old))]:
            ready.add(one.template, one.domain)
        for number, template in enumerate(self._new):
            if number not in missing:
                ready.add(template, HERE)
        planned = self._planned.served(model)
        return ready.served(model) / planned if planned > 0 else 1.0

    def _from(
        self, old: frozenset[str], missing: tuple[int, ...], free: dict[str, int], kinds: dict[str, str]
    ) -> bool:
        there = Counter(kinds.values())
        if not old and not missing and there == +self._wanted:
            return True
        state = (
            old,
            tuple(sorted(self._new[i].id for i in missing)),
            tuple(sorted((kinds[id], free[id], id if id in self._change.machines else "") for id in kinds)),
        )
        if state in self._seen:
            return False
        self._seen.add(state)
        self._left -= 1
        if self._left <= 0:
            return False
        for number in missing:
            rest = tuple(i for i in missing if i != number)
            for after in self._places(self._new[number], free, kinds):
                if self._from(old, rest, after, kinds):
                    return True
        for id in sorted(kinds):
            full = free[id] == KINDS[kinds[id]][0].gpus
            if full and id in self._surplus:
                fewer = {k: v for k, v in kinds.items() if k != id}
                if self._from(old, missing, {k: v for k, v in free.items() if k != id}, fewer):
                    return True
        cost = sum(KINDS[kind][1] for kind in kinds.values())
        budget = self._bounds.budget_usd_h
        for kind, number in self._wanted.items():
            if there[kind] < number and (budget is None or cost + KINDS[kind][1] <= budget + 1e-9):
                id = f"r{len(self._seen)}"
                if self._from(old, missing, {**free, id: KINDS[kind][0].gpus}, {**kinds, id: kind}):
                    return True
        for id in sorted(old):
            model, rest_old = self._old[id].template.model, old - {id}
            before, share = self._share(model, old, missing), self._share(model, rest_old, missing)
            if share < min(before, self._bounds.floor) - 1e-9:
                continue
            after = dict(free)
            for node in self._old[id].claim.nodes:
                after[node.machine_id] += len(node.devices)
            if self._from(rest_old, missing, after, kinds):
                return True
        return False

    def _places(
        self, template: Template, free: dict[str, int], kinds: dict[str, str]
    ) -> list[dict[str, int]]:
        found = [dict(free)]
        for stage in template.placement.stages:
            (node,) = stage.nodes
            kind = node.node_type
            found = [
                {**one, id: one[id] - kind.count}
                for one in found
                for id in one
                if KINDS[kinds[id]][0].gpu == kind.gpu and one[id] >= kind.count and id not in self._surplus
            ]
        unique = {tuple(sorted(one.items())): one for one in found}
        return list(unique.values())
