"""Smooth weighted round robin over a model's instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coral.hookspecs.router import Candidate, RouteRequest, WeightedRoundRobin

if TYPE_CHECKING:
    from coral_router_weighted_round_robin.options import RoundRobinOptions


def build(options: RoundRobinOptions) -> RoundRobin:
    return RoundRobin()


class RoundRobin:
    """A `coral.hookspecs.router.Router`."""

    def __init__(self) -> None:
        self._turns: WeightedRoundRobin[str] = WeightedRoundRobin()

    def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
        chosen = self._turns.pick([(candidate.id, candidate.weight) for candidate in among])
        return next(candidate for candidate in among if candidate.id == chosen)

    def done(self, request: RouteRequest, candidate: Candidate, now: float) -> None:
        """Turns do not depend on how long a request takes."""
