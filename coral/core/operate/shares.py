"""One limit on requests in flight, shared by models so that a flood for one leaves room for the others."""

from __future__ import annotations

from collections.abc import Mapping

GUARANTEED = 0.5
"""Part of a model's share by priority that is kept free for it; the rest is for whoever comes."""


class InflightShares:
    """Each model is guaranteed half of its share of `limit` by priority, at least one request; what is
    beyond the guarantees goes to whoever comes first. So no model is refused below its guarantee because
    of another, and one alone has all but the guarantees of those that are idle. Where there are more models
    than places, each still has one.
    """

    def __init__(self, limit: int, priorities: Mapping[str, float]) -> None:
        """`priorities`: weights > 0 by model."""
        self.limit = limit
        total = sum(priorities.values())
        self.guaranteed = {
            model: max(1, int(GUARANTEED * limit * weight / total)) if len(priorities) > 1 else limit
            for model, weight in priorities.items()
        }

    def most(self, model: str, in_flight: Mapping[str, int]) -> int:
        """Requests that `model` may have in flight now, given what every model has."""
        others = sum(
            max(in_flight.get(other, 0), kept) for other, kept in self.guaranteed.items() if other != model
        )
        return max(self.guaranteed[model], self.limit - others)
