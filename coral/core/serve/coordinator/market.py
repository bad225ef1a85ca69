"""What can be rented: the clouds' offers, and how long one that was refused is left alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from coral.core.operate.holdings import OfferKey
from coral.core.operate.renting import Supply
from coral.errors import QuotaExceeded
from coral.hookspecs.cloud import Cloud
from coral.types.hardware import Offer

COOL_DOWN_S = 60.0
"""An offer whose order has failed is not ordered again within this time, and counts as not obtainable; after
every further failure in a row twice as long."""
QUOTA_S = 300.0
"""The same where a quota is used up, which takes longer to change than what is free."""
COOL_DOWN_MOST_S = 1800.0


class Refused(Struct, kw_only=True):
    """Orders of an offer that have failed in a row."""

    failures: int = 0
    until: float = 0.0


class Market:
    """Called from the event loop only. `held`: how many machines of each offer are held or ordered now."""

    def __init__(
        self,
        clouds: Sequence[Cloud],
        held: Callable[[], Mapping[OfferKey, int]],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clouds = clouds
        self._held = held
        self._now = now
        self._found: dict[OfferKey, tuple[Cloud, Offer]] = {}
        self._most: dict[OfferKey, int] = {}
        self._refused: dict[OfferKey, Refused] = {}

    async def offers(self) -> list[Offer]:
        """All clouds' offers; one that has just been refused counts as having none for a while.

        Raises what a cloud raises.
        """
        found: list[Offer] = []
        for cloud in self._clouds:
            for offer in await cloud.offers():
                key = OfferKey(offer.machine_type.name, offer.domain, offer.market)
                self._found[key] = (cloud, offer)
                self._most[key] = offer.obtainable + self._held().get(key, 0)
                found.append(replace(offer, obtainable=0) if self.is_cooling(key) else offer)
        return found

    def find(self, key: OfferKey) -> tuple[Cloud, Offer]:
        """As last seen. Raises KeyError where no cloud has offered it."""
        return self._found[key]

    def supply(self) -> dict[OfferKey, Supply]:
        """What there is of each offer, as last seen."""
        held = Counter(self._held())
        return {
            key: Supply(
                machine_type=offer.machine_type, most=held[key] if self.is_cooling(key) else self._most[key]
            )
            for key, (_, offer) in self._found.items()
        }

    def is_cooling(self, key: OfferKey) -> bool:
        return key in self._refused and self._refused[key].until > self._now()

    def rented(self, key: OfferKey) -> None:
        self._refused.pop(key, None)

    def refused(self, key: OfferKey, error: Exception) -> float:
        """An order has failed; returns for how many seconds it is left alone."""
        one = self._refused.setdefault(key, Refused())
        first_s = QUOTA_S if isinstance(error, QuotaExceeded) else COOL_DOWN_S
        pause_s = min(COOL_DOWN_MOST_S, first_s * 2.0 ** min(one.failures, 10))
        one.failures += 1
        one.until = self._now() + pause_s
        return pause_s
