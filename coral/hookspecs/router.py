"""Routing policies: pick an instance for a request."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component


class RouteRequest(Struct, frozen=True, kw_only=True):
    """What a policy may know of a request."""

    id: str
    model: str
    prompt_ids: tuple[int, ...]
    max_tokens: int


class Candidate(Struct, frozen=True, kw_only=True):
    """An instance that could take the request. `weight` is its throughput as planned, corrected by
    what is measured; `running` and `waiting` are requests there now; `free_kv` a fraction of its KV."""

    id: str
    weight: float
    running: int = 0
    waiting: int = 0
    free_kv: float = 1.0


class Router(Protocol):
    """Built once per model and called directly: no plugin machinery on the request path."""

    def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
        """One of `among` (never empty). `now` is monotonic seconds."""
        ...

    def done(self, request: RouteRequest, candidate: Candidate, now: float) -> None:
        """The request has left that candidate, for whatever reason; called exactly once per pick."""
        ...


K = TypeVar("K", bound=Hashable)


class WeightedRoundRobin(Generic[K]):
    """Smooth weighted round robin: after any number of picks each key's count is within one of its
    share of the weights, for weights that stay the same. Keys may come and go."""

    def __init__(self) -> None:
        self._credit: dict[K, float] = {}

    def pick(self, weights: Sequence[tuple[K, float]]) -> K:
        """The next key. Weights are >= 0; if all are 0 they count as equal."""
        total = sum(weight for _, weight in weights)
        if total <= 0:
            weights = [(key, 1.0) for key, _ in weights]
            total = float(len(weights))
        credit = {key: self._credit.get(key, 0.0) + weight / total for key, weight in weights}
        best = max(credit, key=lambda key: credit[key])
        credit[best] -= 1.0
        self._credit = credit
        return best


class RouterHooks:
    @hookspec
    def coral_routers(self) -> list[Component]:  # type: ignore[empty-body]
        """Routing policies this plugin offers. `build(options)` returns a `Router`."""
