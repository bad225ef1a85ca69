"""Nodes into machines: all at once, or not at all.

Largest first, each into the machine it fills most tightly: exact whenever the sizes divide each other
(1, 2, 4, 8); otherwise a bounded search tries the other choices. Before nodes are packed one by one, those
that an instance has of a GPU are taken as one piece each, and as few as need be, the largest first, are cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from coral.core.operate.slots import Claim, Slots, Wanted
from coral.types.hardware import Domain, Market, Node, NodeType

SEARCH_STEPS = 20_000
WHOLE_STEPS = 2_000
"""For each number of pieces that are cut; the last attempt, with all of them cut, has `SEARCH_STEPS`."""

At = tuple[int, int, int]
"""Instance, stage, index within the stage."""


class _Item(Struct, frozen=True):
    """Nodes that go on one machine together."""

    nodes: tuple[tuple[At, NodeType], ...]
    size: int
    gpu: str
    domain: Domain
    market: Market | None


def pack(wanted: Sequence[Wanted], slots: Sequence[Slots]) -> list[Claim] | None:
    """A claim for each, or None where no way was found to have them all."""
    pieces = _pieces(wanted)
    largest: dict[tuple[str, Domain], int] = {}
    for slot in slots:
        kind = (slot.gpu, slot.domain)
        largest[kind] = max(largest.get(kind, 0), len(slot.free))
    whole = [one for one in pieces if one.size <= largest.get((one.gpu, one.domain), 0)]
    cut = [part for one in pieces if one not in whole for part in _parts(one)]
    several = [one for one in whole if len(one.nodes) > 1]
    several.sort(key=lambda one: -one.size)
    alone = [one for one in whole if len(one.nodes) == 1]
    number = 0
    while True:
        last = number >= len(several)
        items = [*alone, *cut, *several[number:], *(p for one in several[:number] for p in _parts(one))]
        items.sort(key=lambda one: (-one.size, one.nodes[0][0]))
        choice: list[int] = []
        free = [len(slot.free) for slot in slots]
        if _search(items, slots, free, choice, [SEARCH_STEPS if last else WHOLE_STEPS]):
            return _claims(wanted, slots, items, choice)
        if last:
            return None
        number = min(len(several), max(1, 2 * number))


def _pieces(wanted: Sequence[Wanted]) -> list[_Item]:
    """One for each instance and GPU."""
    found: dict[tuple[int, str], list[tuple[At, NodeType]]] = {}
    for i, one in enumerate(wanted):
        for s, stage in enumerate(one.placement.stages):
            for n, node in enumerate(stage.nodes):
                found.setdefault((i, node.node_type.gpu), []).append(((i, s, n), node.node_type))
    return [
        _Item(tuple(nodes), sum(kind.count for _, kind in nodes), gpu, wanted[i].domain, wanted[i].market)
        for (i, gpu), nodes in found.items()
    ]


def _parts(item: _Item) -> list[_Item]:
    return [_Item(((at, kind),), kind.count, item.gpu, item.domain, item.market) for at, kind in item.nodes]


def _search(
    items: Sequence[_Item], slots: Sequence[Slots], free: list[int], choice: list[int], steps: list[int]
) -> bool:
    """Depth first, the tightest machine first; machines with equally much free count as one."""
    if len(choice) == len(items):
        return True
    steps[0] -= 1
    if steps[0] < 0:
        return False
    item = items[len(choice)]
    fits = [
        at
        for at, slot in enumerate(slots)
        if slot.gpu == item.gpu
        and slot.domain == item.domain
        and item.market in (None, slot.market)
        and free[at] >= item.size
    ]
    tried: set[tuple[int, Market]] = set()
    for at in sorted(fits, key=lambda at: free[at]):
        if (free[at], slots[at].market) in tried:
            continue
        tried.add((free[at], slots[at].market))
        free[at] -= item.size
        choice.append(at)
        if _search(items, slots, free, choice, steps):
            return True
        choice.pop()
        free[at] += item.size
    return False


def _claims(
    wanted: Sequence[Wanted], slots: Sequence[Slots], items: Sequence[_Item], choice: Sequence[int]
) -> list[Claim]:
    cursor = [0] * len(slots)
    nodes: dict[At, Node] = {}
    for item, at in zip(items, choice, strict=True):
        for place, kind in item.nodes:
            start, cursor[at] = cursor[at], cursor[at] + kind.count
            devices = slots[at].free[start : cursor[at]]
            nodes[place] = Node(machine_id=slots[at].machine_id, node_type=kind, devices=devices)
    return [
        Claim(
            stages=tuple(
                tuple(nodes[i, s, n] for n in range(len(stage.nodes)))
                for s, stage in enumerate(one.placement.stages)
            )
        )
        for i, one in enumerate(wanted)
    ]
