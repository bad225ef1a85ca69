"""Where the KV of a request goes when a prefill instance hands it over."""

from __future__ import annotations

from msgspec import Struct


class KvNode(Struct, frozen=True, kw_only=True):
    """A node of the route that takes KV over: the layers `[first_layer, end_layer)` that it holds, and
    the address of its data socket."""

    node: str
    first_layer: int
    end_layer: int
    address: str


class KvDestination(Struct, frozen=True, kw_only=True):
    """Where the KV of one request goes: an attempt at a decode instance, its route's nodes by stage."""

    instance: str
    generation: int
    attempt: int
    nodes: tuple[KvNode, ...]

    @property
    def key(self) -> tuple[str, int]:
        """(instance, attempt): tells one destination of a request from another."""
        return self.instance, self.attempt
