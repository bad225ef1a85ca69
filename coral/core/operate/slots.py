"""Which devices of which machine each planned node gets.

A node takes `count` devices of one machine with that GPU. Nodes of all instances that are to start
are packed together, largest first, each into the machine it fills most tightly: exact whenever the
sizes divide each other (1, 2, 4, 8); otherwise a bounded search tries the other choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from coral.types.hardware import Domain, Machine, Market, Node, NodeType
from coral.types.placement import Placement

SEARCH_STEPS = 20_000


class Slots(Struct, frozen=True, kw_only=True):
    """The devices of one machine that nobody holds."""

    machine_id: str
    gpu: str
    domain: Domain
    free: tuple[int, ...]
    market: Market = "on_demand"


class Claim(Struct, frozen=True, kw_only=True):
    """Nodes by stage, in the order of the placement's stages and nodes."""

    stages: tuple[tuple[Node, ...], ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for stage in self.stages for node in stage)

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.machine_id for node in self.nodes))


def free_slots(machines: Iterable[Machine], held: Iterable[Node]) -> list[Slots]:
    """What is free on `machines` when `held` nodes are taken."""
    taken: dict[str, set[int]] = {}
    for node in held:
        taken.setdefault(node.machine_id, set()).update(node.devices)
    return [
        Slots(
            machine_id=machine.id,
            gpu=machine.machine_type.gpu,
            domain=machine.domain,
            free=tuple(d for d in range(machine.machine_type.gpus) if d not in taken.get(machine.id, ())),
            market=machine.market,
        )
        for machine in machines
    ]


def claim(
    wanted: Sequence[tuple[Placement, Domain]],
    slots: Sequence[Slots],
    markets: Sequence[Market | None] = (),
    later: Sequence[Slots] = (),
) -> list[Claim | None]:
    """A claim for each wanted placement, or None for those that do not fit now. `markets`: for each the one
    that its machines must be of, or None; empty for none of them. `later`: what will be free once all that
    is to go has gone and all that is to come has come.

    Tries all together first, then one by one in the order given. As long as all can have room later, none
    takes what would leave another without: a small node waits rather than sit where only a large one fits.
    """
    markets = markets or [None] * len(wanted)
    together = _pack(wanted, slots, markets)
    if together is not None:
        return list(together)
    now, then = list(slots), list(later)
    guarded = _pack(wanted, then, markets) is not None
    claims: list[Claim | None] = []
    for number, (one, market) in enumerate(zip(wanted, markets, strict=True)):
        packed = _pack([one], now, [market])
        waiting = [i for i, got in enumerate(claims) if got is None]
        rest = [*waiting, *range(number + 1, len(wanted))]
        left = now
        while packed and guarded:
            without = [_without(slot, packed[0]) for slot in then]
            if _pack([wanted[i] for i in rest], without, [markets[i] for i in rest]) is not None:
                then = without
                break
            refused = packed[0].machines
            left = [slot for slot in left if slot.machine_id not in refused]
            packed = _pack([one], left, [market])
        claims.append(packed[0] if packed else None)
        if packed:
            now = [_without(slot, packed[0]) for slot in now]
    return claims


def _without(slot: Slots, taken: Claim) -> Slots:
    gone = {d for node in taken.nodes if node.machine_id == slot.machine_id for d in node.devices}
    return replace(slot, free=tuple(d for d in slot.free if d not in gone))


class _Need(Struct, frozen=True):
    instance: int
    stage: int
    index: int
    node_type: NodeType
    domain: Domain
    market: Market | None


def _pack(
    wanted: Sequence[tuple[Placement, Domain]], slots: Sequence[Slots], markets: Sequence[Market | None]
) -> list[Claim] | None:
    needs = [
        _Need(i, s, n, node.node_type, domain, markets[i])
        for i, (placement, domain) in enumerate(wanted)
        for s, stage in enumerate(placement.stages)
        for n, node in enumerate(stage.nodes)
    ]
    needs.sort(key=lambda need: -need.node_type.count)
    free = [len(slot.free) for slot in slots]
    choice: list[int] = []
    if not _search(needs, slots, free, choice, [SEARCH_STEPS]):
        return None
    cursor = [0] * len(slots)
    nodes: dict[tuple[int, int, int], Node] = {}
    for need, at in zip(needs, choice, strict=True):
        slot, start = slots[at], cursor[at]
        cursor[at] += need.node_type.count
        nodes[need.instance, need.stage, need.index] = Node(
            machine_id=slot.machine_id, node_type=need.node_type, devices=slot.free[start : cursor[at]]
        )
    return [
        Claim(
            stages=tuple(
                tuple(nodes[i, s, n] for n in range(len(stage.nodes)))
                for s, stage in enumerate(placement.stages)
            )
        )
        for i, (placement, _) in enumerate(wanted)
    ]


def _search(
    needs: Sequence[_Need], slots: Sequence[Slots], free: list[int], choice: list[int], steps: list[int]
) -> bool:
    """Depth first, the tightest machine first; machines with equally much free count as one."""
    if len(choice) == len(needs):
        return True
    steps[0] -= 1
    if steps[0] < 0:
        return False
    need = needs[len(choice)]
    size = need.node_type.count
    fits = [
        at
        for at, slot in enumerate(slots)
        if slot.gpu == need.node_type.gpu
        and slot.domain == need.domain
        and need.market in (None, slot.market)
        and free[at] >= size
    ]
    tried: set[tuple[int, Market]] = set()
    for at in sorted(fits, key=lambda at: free[at]):
        if (free[at], slots[at].market) in tried:
            continue
        tried.add((free[at], slots[at].market))
        free[at] -= size
        choice.append(at)
        if _search(needs, slots, free, choice, steps):
            return True
        choice.pop()
        free[at] += size
    return False
