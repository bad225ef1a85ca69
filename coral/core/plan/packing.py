"""Which nodes sit on which machines: first-fit-decreasing, verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from coral.types.hardware import Domain


class Item(Struct, frozen=True, kw_only=True):
    """A node of `count` GPUs to be put on one machine; `whole`: on a machine of just that size."""

    key: str
    domain: Domain
    gpu: str
    count: int
    whole: bool = False


class Bin(Struct, frozen=True, kw_only=True):
    """A machine; `used` of its GPUs are taken already."""

    key: str
    domain: Domain
    gpu: str
    gpus: int
    used: int = 0

    @property
    def free(self) -> int:
        return self.gpus - self.used


class Packing(Struct, frozen=True, kw_only=True):
    """`where[item key]` is a bin's key; `left` are the items for which there was no room."""

    where: dict[str, str]
    bins: tuple[Bin, ...]
    left: tuple[Item, ...]


def pack(items: Iterable[Item], bins: Sequence[Bin]) -> Packing:
    """Whole machines first, then the largest nodes first, each into the fullest machine that takes it.

    Exact where sizes that share machines divide each other (1, 2, 4, 8), whatever the machines' sizes
    (see `hosting`). Ties go by the order of `bins`, so that one input has one answer.
    """
    ordered = sorted(items, key=lambda item: (not item.whole, -item.count))
    free = [one.free for one in bins]
    where: dict[str, str] = {}
    left: list[Item] = []
    unused = _Shelves((index for index, one in enumerate(bins) if one.used == 0), bins, free)
    for item in ordered:
        if item.whole:
            _put(item, unused.pop(item, exactly=True), bins, free, where, left)
    shelves = _Shelves(range(len(bins)), bins, free)
    for item in ordered:
        if not item.whole:
            index = shelves.pop(item)
            _put(item, index, bins, free, where, left)
            if index is not None:
                shelves.push(index)
    after = tuple(replace(one, used=one.gpus - free[index]) for index, one in enumerate(bins))
    return Packing(where=where, bins=after, left=tuple(left))


def _put(
    item: Item,
    index: int | None,
    bins: Sequence[Bin],
    free: list[int],
    where: dict[str, str],
    left: list[Item],
) -> None:
    if index is None:
        left.append(item)
    else:
        where[item.key] = bins[index].key
        free[index] -= item.count


class _Shelves:
    """Indices of machines by domain, GPU and free GPUs, each shelf a heap: the first machine is found at
    once, however many there are."""

    def __init__(self, indices: Iterable[int], bins: Sequence[Bin], free: list[int]) -> None:
        self._bins, self._free = bins, free
        self._shelves: dict[tuple[Domain, str], dict[int, list[int]]] = {}
        for index in indices:
            self.push(index)

    def push(self, index: int) -> None:
        kind = (self._bins[index].domain, self._bins[index].gpu)
        heappush(self._shelves.setdefault(kind, {}).setdefault(self._free[index], []), index)

    def pop(self, item: Item, *, exactly: bool = False) -> int | None:
        """Take out the first of the fullest machines that have room for the item, or just its size."""
        shelves = self._shelves.get((item.domain, item.gpu), {})
        sizes = [size for size, held in shelves.items() if held and size >= item.count]
        size = min(sizes, default=None)
        if size is None or (exactly and item.count not in sizes):
            return None
        return heappop(shelves[item.count if exactly else size])
