"""Machines over a cloud that fails as it is told to: nothing is paid for and forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import zmq

from coral.core.operate.lifecycle import MachineState
from coral.core.operate.reconcile import OfferKey
from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.machines import RELEASE_AGAIN_S, Machines
from coral.core.serve.coordinator.market import COOL_DOWN_S, QUOTA_S
from coral.core.serve.net.wire import AgentHello
from coral.errors import CloudError, NoCapacity, QuotaExceeded
from coral.hookspecs.cloud import Notice, RentOrder
from coral.hookspecs.engine import Launch
from coral.types.hardware import Domain, Gpu, Machine, MachineType, Offer

OFFER = Offer(
    machine_type=MachineType(name="small", gpu="g", gpus=1),
    domain=Domain("c", "d"),
    price_usd_h=1.0,
    obtainable=5,
)
KEY = OfferKey("small", Domain("c", "d"), OFFER.market)


class FailingCloud:
    """`rent_fault`, `release_fault`: raised while they are set."""

    def __init__(self, name: str = "c") -> None:
        self.name = name
        self.held: dict[str, Machine] = {}
        self.rent_fault: Exception | None = None
        self.release_fault: Exception | None = None

    def gpus(self) -> Sequence[Gpu]:
        return []

    async def offers(self) -> Sequence[Offer]:
        return [OFFER]

    async def machines(self) -> Sequence[Machine]:
        return list(self.held.values())

    async def notices(self) -> Sequence[Notice]:
        return []

    async def rent(self, order: RentOrder) -> Machine:
        if self.rent_fault is not None:
            raise self.rent_fault
        machine = Machine(
            id=f"{self.name}-{len(self.held)}",
            machine_type=OFFER.machine_type,
            domain=OFFER.domain,
            price_usd_h=1.0,
        )
        self.held[machine.id] = machine
        return machine

    async def release(self, machines: Sequence[str]) -> None:
        if self.release_fault is not None:
            raise self.release_fault
        for id in machines:
            self.held.pop(id, None)


class Owner:
    def __init__(self) -> None:
        self.replans = 0

    def machine_changed(self) -> None:
        return

    def fail_instances(self, machine: str, reason: str) -> None:
        return

    def machine_lost(self, machine: str, reason: str) -> None:
        return

    def replan(self, reason: str) -> None:
        self.replans += 1


class World:
    def __init__(self, folder: Path, *clouds: FailingCloud) -> None:
        self.now = 0.0
        self.owner = Owner()
        self.journal = Journal()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.control = Control(self.context, f"ipc://{folder}/c", lambda *_: None)
        self.machines = Machines(
            clouds, Launch(argv=("agent",)), self.control, self.owner, self.journal,
            boot_timeout_s=10.0, now=lambda: self.now,
        )  # fmt: skip

    async def rented(self) -> None:
        await self.machines.market.offers()
        self.machines.rent(KEY)
        await asyncio.sleep(0.01)

    async def tick(self, now: float) -> None:
        self.now = now
        self.machines.tick()
        await asyncio.sleep(0.01)

    def close(self) -> None:
        self.control.close()
        self.context.destroy(0)


@pytest.mark.parametrize("joined", [True, False])
def test_a_machine_that_its_cloud_does_not_take_back_is_given_back_again(
    tmp_path: Path, joined: bool
) -> None:
    async def body() -> None:
        cloud = FailingCloud()
        world = World(tmp_path, cloud)
        await world.rented()
        cloud.release_fault = CloudError("the API is down")
        if joined:
            hello = AgentHello(machine="c-0", pid=1, version="1")
            assert world.machines.hello(Peer(b"peer"), hello) is not None
            world.machines.end("c-0")
        await world.tick(11.0)  # one that has not joined is lost now
        assert set(cloud.held) == {"c-0"}
        cloud.release_fault = None
        await world.tick(10.0 + RELEASE_AGAIN_S / 2)
        assert set(cloud.held) == {"c-0"}, "not at once"
        await world.tick(11.0 + RELEASE_AGAIN_S)
        assert cloud.held == {}
        expected = MachineState.RELEASED if joined else MachineState.LOST
        assert world.machines.all()["c-0"].state is expected
        world.close()

    asyncio.run(body())


@pytest.mark.parametrize("fault", [CloudError("no credentials"), ValueError("a fault of the plugin")])
def test_an_order_that_fails_in_any_way_is_over_and_not_repeated_at_once(
    tmp_path: Path, fault: Exception
) -> None:
    async def body() -> None:
        cloud = FailingCloud()
        cloud.rent_fault = fault
        world = World(tmp_path, cloud)
        await world.rented()
        [order] = world.machines.all().values()
        assert order.state is MachineState.LOST
        assert str(fault) in order.reason
        assert world.owner.replans == 1
        assert [offer.obtainable for offer in await world.machines.market.offers()] == [0]
        world.now = COOL_DOWN_S + 1
        assert [offer.obtainable for offer in await world.machines.market.offers()] == [5]
        world.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("fault", "first_s"),
    [(NoCapacity("none is free"), COOL_DOWN_S), (QuotaExceeded("your quota is 4"), QUOTA_S)],
)
def test_an_offer_that_is_refused_again_is_left_alone_for_longer(
    tmp_path: Path, fault: CloudError, first_s: float
) -> None:
    """Until one can be had; a quota changes more slowly than what is free."""

    async def body() -> None:
        cloud = FailingCloud()
        cloud.rent_fault = fault
        world = World(tmp_path, cloud)
        await world.rented()
        for pause_s in (first_s, 2 * first_s, 4 * first_s):
            world.now += pause_s - 1
            world.machines.rent(KEY)  # refused without asking its cloud
            assert world.machines.market.supply()[KEY].most == 0
            world.now += 1
            assert world.machines.market.supply()[KEY].most == 5
            await world.rented()
        assert world.owner.replans == 4
        world.now += 8 * first_s
        cloud.rent_fault = None
        await world.rented()
        cloud.rent_fault = fault
        await world.rented()
        assert world.machines.market.supply()[KEY].most == 1, "the one that is held"
        world.now += first_s
        assert not world.machines.market.is_cooling(KEY)
        world.close()

    asyncio.run(body())


def test_at_the_end_every_cloud_is_asked_and_what_may_be_left_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        bad, good = FailingCloud("bad"), FailingCloud("good")
        world = World(tmp_path, good, bad)  # the offer that is known last is rented from
        await world.rented()
        good.held["good-9"] = msgspec.structs.replace(bad.held["bad-0"], id="good-9")
        bad.release_fault = CloudError("the API is down")
        with pytest.raises(CloudError, match="bad-0: the API is down"):
            await world.machines.give_back_all()
        assert good.held == {}
        bad.release_fault = None
        await world.machines.give_back_all()
        assert bad.held == {}
        world.close()

    asyncio.run(body())
