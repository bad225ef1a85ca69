"""Which devices of which machine each planned node gets.

A node takes `count` devices of one machine with that GPU. Nodes of all instances that are to start are packed
together (see `packing`), those of one instance on one machine where there is room: a template counts on the
slowest network, so that is no less than planned, and a machine that is lost takes fewer instances along.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from coral.types.hardware import Domain, Machine, Market, Node
from coral.types.placement import Placement


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


class Wanted(Struct, frozen=True, kw_only=True):
    """A placement that is to have devices of a domain, and of one market where that is given."""

    placement: Placement
    domain: Domain
    market: Market | None = None


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


def without(slot: Slots, taken: Claim) -> Slots:
    """What is left of a machine beside a claim."""
    gone = {d for node in taken.nodes if node.machine_id == slot.machine_id for d in node.devices}
    if not gone:
        return slot
    return replace(slot, free=tuple(d for d in slot.free if d not in gone))
