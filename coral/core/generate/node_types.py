"""Which node types the machines on offer can make, and how fast the slowest of them talk to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coral.core.profile.device import Hop
from coral.errors import UsageError
from coral.types.hardware import MachineType, NodeType, Offer

LOOPBACK = Hop(latency_s=0.5e-3, bytes_per_s=1e9)
"""Where no machine type states a network: processes of one machine, measured with ZeroMQ payloads."""


def node_types(offers: Sequence[Offer], *, slices: bool) -> tuple[NodeType, ...]:
    """With slices, 1, 2, 4, … GPUs of a machine and all of them; without, all of them only."""
    found: set[NodeType] = set()
    for kind in _machine_types(offers):
        counts = {kind.gpus}
        if slices:
            counts |= {1 << e for e in range(kind.gpus.bit_length())}
        found |= {NodeType(kind.gpu, count) for count in counts}
    return tuple(sorted(found))


def check_distinct(offers: Sequence[Offer]) -> None:
    """Raises UsageError where two offers have one key, so that an order could mean either."""
    counts = Counter(offer.key for offer in offers)
    doubled = sorted(key for key, count in counts.items() if count > 1)
    if doubled:
        raise UsageError(
            f"offered twice: {', '.join(doubled)}",
            mend="give the entries of `clouds` different names or regions, or merge them",
        )


def worst_hop(offers: Sequence[Offer]) -> Hop:
    """The highest latency and the lowest rate of any network card on offer."""
    stated = [kind for kind in _machine_types(offers) if kind.nic_bytes_per_s > 0]
    if not stated:
        return LOOPBACK
    return Hop(
        latency_s=max(kind.nic_latency_s for kind in stated),
        bytes_per_s=min(kind.nic_bytes_per_s for kind in stated),
    )


def _machine_types(offers: Sequence[Offer]) -> tuple[MachineType, ...]:
    return tuple(dict.fromkeys(offer.machine_type for offer in offers))
