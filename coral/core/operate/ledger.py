"""The KV ledger of an instance: which sequence holds how many blocks on which node.

The scheduler's one truth about memory. Engines reserve by the same arithmetic
(`coral.types.reservation.blocks`), so what fits here fits there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coral.types.reservation import blocks
from coral.types.stage import KvCapacity


class Ledger:
    """Blocks per node; a sequence is reserved on every node of its route alike, in tokens."""

    def __init__(self, capacities: Mapping[str, KvCapacity]) -> None:
        self._capacity = dict(capacities)
        self._free = {node: capacity.blocks for node, capacity in capacities.items()}
        self._held: dict[str, dict[str, int]] = {node: {} for node in capacities}
        self._route: dict[str, tuple[str, ...]] = {}

    def can_ever_hold(self, node: str, tokens: int) -> bool:
        """Whether an empty node could hold a sequence of `tokens` tokens."""
        return self._blocks(node, tokens) <= self._capacity[node].blocks

    def has_room(self, node: str, tokens: int) -> bool:
        """Whether a new sequence of `tokens` tokens fits now."""
        return self._blocks(node, tokens) <= self._free[node]

    def reserve(self, request: str, route: tuple[str, ...], tokens: int) -> None:
        """Take blocks for `tokens` tokens on every node of the route; the caller has seen the room."""
        if request in self._route:
            raise ValueError(f"{request} is in the ledger already")
        if len(set(route)) != len(route):
            raise ValueError(f"a route passes a node at most once, not {route}")
        for node in route:
            if not self.has_room(node, tokens):
                raise ValueError(f"no room for {tokens} tokens of {request} on {node}")
        for node in route:
            need = self._blocks(node, tokens)
            self._held[node][request] = need
            self._free[node] -= need
        self._route[request] = route

    def lacking(self, request: str, tokens: int) -> dict[str, int]:
        """Blocks missing per node before `request` can be extended to `tokens` tokens; empty = it fits."""
        missing = {}
        for node in self._route[request]:
            short = self._growth(node, request, tokens) - self._free[node]
            if short > 0:
                missing[node] = short
        return missing

    def extend(self, request: str, tokens: int) -> None:
        """Hold `tokens` tokens in all on every node of the route; the caller has seen the room."""
        if self.lacking(request, tokens):
            raise ValueError(f"no room to extend {request} to {tokens} tokens")
        for node in self._route[request]:
            growth = self._growth(node, request, tokens)
            self._held[node][request] += growth
            self._free[node] -= growth

    def free(self, request: str) -> None:
        """Give back all that a sequence holds on its route."""
        for node in self._route.pop(request):
            self._free[node] += self._held[node].pop(request)

    def holders(self, node: str) -> Iterable[str]:
        """Sequences that hold blocks on a node."""
        return self._held[node].keys()

    def held(self, node: str, request: str) -> int:
        """Blocks of a sequence on a node; 0 where it holds none."""
        return self._held[node].get(request, 0)

    def free_blocks(self, node: str) -> int:
        return self._free[node]

    @property
    def idle(self) -> bool:
        """Nothing is held anywhere."""
        return not self._route

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held exactly once."""
        for node, capacity in self._capacity.items():
            held = self._held[node]
            if self._free[node] < 0 or any(count <= 0 for count in held.values()):
                raise AssertionError(f"{node}: negative or empty entry: {self._free[node]} free, {held}")
            if self._free[node] + sum(held.values()) != capacity.blocks:
                raise AssertionError(f"{node}: {self._free[node]} free + {held} is not {capacity.blocks}")
            strangers = [request for request in held if node not in self._route.get(request, ())]
            if strangers:
                raise AssertionError(f"{node}: held by sequences without a route there: {strangers}")

    def _blocks(self, node: str, tokens: int) -> int:
        return blocks(tokens, self._capacity[node].block_size)

    def _growth(self, node: str, request: str, tokens: int) -> int:
        return max(0, self._blocks(node, tokens) - self._held[node][request])
