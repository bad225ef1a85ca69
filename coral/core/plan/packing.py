"""Which nodes sit on which machines: first-fit-decreasing, verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    def takes(self, item: Item) -> bool:
        if item.whole:
            return self.used == 0 and self.gpus == item.count
        return self.free >= item.count


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
    state: dict[tuple[Domain, str], list[Bin]] = {}
    for one in bins:
        state.setdefault((one.domain, one.gpu), []).append(one)
    where: dict[str, str] = {}
    left: list[Item] = []
    for item in sorted(items, key=lambda item: (not item.whole, -item.count)):
        among = state.get((item.domain, item.gpu), [])
        best = min(
            (index for index, one in enumerate(among) if one.takes(item)),
            key=lambda index: (among[index].free, index),
            default=None,
        )
        if best is None:
            left.append(item)
            continue
        where[item.key] = among[best].key
        among[best] = replace(among[best], used=among[best].used + item.count)
    after = {one.key: one for group in state.values() for one in group}
    return Packing(where=where, bins=tuple(after[one.key] for one in bins), left=tuple(left))
