"""The contract of clouds."""

from __future__ import annotations

import asyncio
import math
import sys

import pytest

from coral.hookspecs.cloud import Cloud, RentOrder
from coral.hookspecs.engine import Launch
from coral.testing.contract import Contract
from coral.types.hardware import Machine, Offer

IDLE_AGENT = Launch(argv=(sys.executable, "-c", "import time; time.sleep(120)"))
"""Stands in for the agent: it does nothing and ends by itself."""


class CloudContract(Contract):
    """Needs the fixture `cloud`: a new one for every test, with an offer that can be had and nothing
    rented. The suite gives back what it rents.

    `rents`: whether machines can be rented there at all; clouds that only list offers say False.
    """

    rents = True

    @pytest.fixture
    def cloud(self) -> Cloud:
        self._undefined("cloud")

    @pytest.fixture
    def renting(self, cloud: Cloud) -> Cloud:
        if not self.rents:
            pytest.skip("nothing can be rented at this cloud, and its suite says so")
        return cloud

    def test_offers(self, cloud: Cloud) -> None:
        offers = asyncio.run(_offers(cloud))
        assert offers
        for offer in offers:
            assert math.isfinite(offer.price_usd_h)
            assert offer.price_usd_h >= 0
            assert offer.obtainable >= 0
            assert offer.machine_type.gpus >= 1
        keys = [offer.key for offer in offers]
        assert len(set(keys)) == len(keys)

    def test_own_gpus_are_told_apart(self, cloud: Cloud) -> None:
        names = [gpu.name for gpu in cloud.gpus()]
        assert len(set(names)) == len(names)
        assert all(gpu.memory_bytes > 0 for gpu in cloud.gpus())

    def test_nothing_is_rented_at_first(self, cloud: Cloud) -> None:
        async def ask() -> tuple[int, int]:
            return len(await cloud.machines()), len(await cloud.notices())

        assert asyncio.run(ask()) == (0, 0)

    def test_unknown_machines_are_released_in_peace(self, renting: Cloud) -> None:
        asyncio.run(renting.release(["no-such-machine"]))
        asyncio.run(renting.release([]))

    def test_rent_find_release(self, renting: Cloud) -> None:
        async def life() -> None:
            offer = await _obtainable(renting)
            machine = await renting.rent(_order("suite-1", offer))
            try:
                assert machine.machine_type == offer.machine_type
                assert machine.domain == offer.domain
                assert machine.price_usd_h == offer.price_usd_h
                assert [m.id for m in await renting.machines()] == [machine.id]
            finally:
                await renting.release([machine.id])
            assert await renting.machines() == [] or not list(await renting.machines())
            await renting.release([machine.id])  # again, in peace

        asyncio.run(life())

    def test_the_same_order_never_rents_twice(self, renting: Cloud) -> None:
        async def life() -> None:
            offer = await _obtainable(renting)
            order = _order("suite-2", offer)
            both: list[Machine] = list(await asyncio.gather(renting.rent(order), renting.rent(order)))
            both.append(await renting.rent(order))
            try:
                assert {machine.id for machine in both} == {both[0].id}
                assert len(await renting.machines()) == 1
            finally:
                await renting.release([machine.id for machine in both])

        asyncio.run(life())

    def test_what_is_rented_can_no_longer_be_had(self, renting: Cloud) -> None:
        """For offers whose number is limited; `obtainable` counts what can be had in addition."""

        async def life() -> None:
            offer = await _obtainable(renting)
            machine = await renting.rent(_order("suite-3", offer))
            try:
                now = {one.key: one.obtainable for one in await _offers(renting)}
                assert now.get(offer.key, 0) <= offer.obtainable
            finally:
                await renting.release([machine.id])

        asyncio.run(life())


async def _offers(cloud: Cloud) -> list[Offer]:
    return list(await cloud.offers())


async def _obtainable(cloud: Cloud) -> Offer:
    return next(offer for offer in await cloud.offers() if offer.obtainable > 0)


def _order(name: str, offer: Offer) -> RentOrder:
    return RentOrder(id=name, offer=offer, agent=IDLE_AGENT)
