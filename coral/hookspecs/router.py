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
    """An instance that could take the request now. `weight` is its throughput as planned, in requests
    per second whatever its phase, corrected by what is measured; `running` and `waiting` are requests
    there now; `free_kv` a fraction of its KV."""

    id: str
    weight: float
    running: int = 0
    waiting: int = 0
    free_kv: float = 1.0


class Router(Protocol):
    """Built once per model, and once more for its decode legs where prefill and decode are apart; called
    directly: no plugin machinery on the request path."""

    def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
        """One of `among` (never empty). `now` is monotonic seconds."""
        ...

    def done(self, request: RouteRequest, candidate: Candidate, now: float) -> None:
        """The request has left that candidate, for whatever reason; called exactly once per pick."""
        ...


K = TypeVar("K", bound=Hashable)


class WeightedRoundRobin(Generic[K]):
    """Weighted round robin by Tijdeman's rule for the chairman assignment problem (Discrete Mathematics
    32, 1980): while the weights stay the same, each of n keys' count is within 1 - 1/(2n - 2) of its share
    of the picks, at all times. Keys may come and go, and weights change: a key keeps what it is
    owed while it is among those to pick from.
    """

    def __init__(self) -> None:
        self._owed: dict[K, float] = {}

    def pick(self, weights: Sequence[tuple[K, float]]) -> K:
        """The next key. Weights are >= 0; if all are 0 they count as equal."""
        total = sum(weight for _, weight in weights)
        shares = {key: weight / total if total > 0 else 1.0 / len(weights) for key, weight in weights}
        owed = {key: self._owed.get(key, 0.0) + share for key, share in shares.items()}
        slack = 1.0 / (2 * len(owed) - 2) if len(owed) > 1 else 0.0
        due = [key for key, share in shares.items() if share > 0 and owed[key] >= slack]
        if due:  # the one whose count would be the first to fall too far behind
            best = min(due, key=lambda key: (1.0 - slack - owed[key]) / shares[key])
        else:  # only after the weights have changed
            best = max((key for key, share in shares.items() if share > 0), key=lambda key: owed[key])
        owed[best] -= 1.0
        self._owed = owed
        return best


class RouterHooks:
    @hookspec
    def coral_routers(self) -> list[Component]:  # type: ignore[empty-body]
        """Routing policies this plugin offers. `build(options)` returns a `Router`."""
