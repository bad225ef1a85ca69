"""Nodes into machines: all at once, or not at all.

Largest first, each into the machine it fills most tightly: exact whenever the sizes divide each other
(1, 2, 4, 8); otherwise a bounded search tries the other choices. Before nodes are packed one by one, those
that an instance has of a GPU are taken as one piece each, and as few as need be, the largest first, are cut.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from coral.core.operate.slots import Claim, Slots, Wanted
from coral.types.hardware import Domain, Market, Node, NodeType

SEARCH_STEPS = 6_000
WHOLE_STEPS = 1_000
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
    slots = [slot for slot in slots if slot.free]
    pieces = _pieces(wanted)
    if not _enough(pieces, slots):
        return None
    largest: dict[tuple[str, Domain], int] = {}
    for slot in slots:
        kind = (slot.gpu, slot.domain)
        largest[kind] = max(largest.get(kind, 0), len(slot.free))
    several = [one for one in pieces if len(one.nodes) > 1]
    cut = [p for one in several if one.size > largest[one.gpu, one.domain] for p in _parts(one)]
    several = [one for one in several if one.size <= largest[one.gpu, one.domain]]
    several.sort(key=lambda one: -one.size)
    alone = [one for one in pieces if len(one.nodes) == 1]
    number = 0
    while True:
        last = number >= len(several)
        items = [*alone, *cut, *several[number:], *(p for one in several[:number] for p in _parts(one))]
        items.sort(key=lambda one: (-one.size, one.nodes[0][0]))
        choice = _search(items, Shelves(slots), SEARCH_STEPS if last else WHOLE_STEPS)
        if choice is not None:
            return _claims(wanted, slots, items, choice)
        if last:
            return None
        number = min(len(several), max(1, 2 * number))


def _enough(pieces: Sequence[_Item], slots: Sequence[Slots]) -> bool:
    """Whether there are as many devices of each kind as are asked for."""
    free: Counter[tuple[str, Domain]] = Counter()
    for slot in slots:
        free[slot.gpu, slot.domain] += len(slot.free)
    for piece in pieces:
        free[piece.gpu, piece.domain] -= piece.size
    return all(count >= 0 for count in free.values())


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


def _search(items: Sequence[_Item], shelves: Shelves, steps: int) -> list[int] | None:
    """The machine of each item: depth first, the tightest machine first. Where the sizes divide each other
    and no market is asked for, the first way is as good as any."""
    if not items:
        return []
    sizes = sorted({item.size for item in items})
    chain = all(b % a == 0 for a, b in pairwise(sizes)) and all(item.market is None for item in items)
    choice: list[int] = []
    open_: list[Iterator[tuple[int, Market]]] = [iter(shelves.fits(items[0]))]
    while open_:
        steps -= 1
        option = next(open_[-1], None)
        if steps < 0 or (option is None and chain):
            return None
        if option is None:
            open_.pop()
            if choice:
                shelves.give_back(items[len(choice) - 1], choice.pop())
            continue
        choice.append(shelves.take(items[len(choice)], option))
        if len(choice) == len(items):
            return choice
        open_.append(iter(shelves.fits(items[len(choice)])))
    return None


class Shelves:
    """Machines by what is free of them; those of a shelf are alike."""

    def __init__(self, slots: Sequence[Slots]) -> None:
        self._slots = slots
        self._free = [len(slot.free) for slot in slots]
        self._shelves: dict[tuple[str, Domain], dict[tuple[int, Market], list[int]]] = {}
        for at in range(len(slots)):
            self._put(at)

    def fits(self, item: _Item) -> list[tuple[int, Market]]:
        """Shelves whose machines have room for it, the tightest first."""
        shelves = self._shelves.get((item.gpu, item.domain), {})
        return sorted(
            (free, market)
            for (free, market), on in shelves.items()
            if on and free >= item.size and item.market in (None, market)
        )

    def take(self, item: _Item, shelf: tuple[int, Market]) -> int:
        """Put the item on a machine of that shelf."""
        at = self._shelves[item.gpu, item.domain][shelf].pop(0)
        self._free[at] -= item.size
        self._put(at)
        return at

    def give_back(self, item: _Item, at: int) -> None:
        shelf = (self._free[at], self._slots[at].market)
        self._shelves[item.gpu, item.domain][shelf].remove(at)
        self._free[at] += item.size
        self._put(at)

    def _put(self, at: int) -> None:
        slot = self._slots[at]
        shelves = self._shelves.setdefault((slot.gpu, slot.domain), {})
        insort(shelves.setdefault((self._free[at], slot.market), []), at)


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
